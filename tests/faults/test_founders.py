"""Founders of new masters that are killed at any moment: the next client goes on, and no master is kept out (F2)."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import redis

from redlatch import Client
from redlatch.guard.marker import MARKER, Marker
from redlatch.testing import embedded

FOUNDER = """import sys
from redlatch import Client
client = Client(sys.argv[1:])
print("ready", flush=True)
client.lock("stock").acquire()
"""
TRIALS = 24


@pytest.mark.slow("a founder is killed at each of its steps")
def test_a_founder_that_is_killed_at_any_moment_keeps_no_master_out() -> None:
    with embedded.masters(3) as urls:
        servers = [redis.Redis.from_url(url) for url in urls]
        begun: set[tuple[object, ...]] = set()
        # A busy machine makes founders slower: then they get more time, until they are killed at different points.
        moments = (slower * trial * 0.0004 for slower in (1, 4, 16, 64) for trial in range(TRIALS))
        for number, seconds in enumerate(moments):
            if number >= TRIALS and len(begun) > 2:
                break
            for server in servers:
                server.flushall()
            with subprocess.Popen([sys.executable, "-c", FOUNDER, *urls], stdout=subprocess.PIPE) as founder:
                assert founder.stdout is not None
                assert founder.stdout.readline() == b"ready\n"
                time.sleep(seconds)  # the founder goes on for this time
                founder.kill()
            begun.add(tuple(marker and marker.stage for marker in map(marker_of, servers)))
            with Client(urls) as client, client.lock("stock", ttl=1):
                assert [marker is not None and marker.out for marker in map(marker_of, servers)] == [0, 0, 0]
        assert len(begun) > 2, begun


def marker_of(server: redis.Redis) -> Marker | None:
    return Marker.read(server.get(MARKER))  # type: ignore[arg-type]
