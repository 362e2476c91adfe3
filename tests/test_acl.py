"""Runs the suite of the locks with a restricted user (see `restricted`): a part of it here, all of it on demand.

REDLATCH_TEST_ACL=1 make test TESTS="tests/test_family.py tests/test_batch.py tests/test_fair.py tests/test_waiting.py"
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from support.builds import builds
from support.faces import Face, ask
from support.restricted import OPERATIONS, USER, rights

from redlatch import Client, ConfigurationError, QuorumUnavailable
from redlatch.testing import cluster, embedded

TESTS = Path(__file__).parent
SUITE = ["test_acl.py", "test_family.py", "test_batch.py", "test_fair.py", "test_renewal.py"]


@pytest.mark.slow("a part of the suite once more, as a restricted user")
@pytest.mark.skipif("REDLATCH_TEST_ACL" in os.environ, reason="all of them run so")
def test_the_locks_need_no_more_rights_than_the_documentation_lists(tmp_path: Path) -> None:
    chosen = f"asyncio-{builds()[-1].name}"  # faces and builds send the same commands
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-k", chosen]
    ended = subprocess.run(
        [*command, *[str(TESTS / name) for name in SUITE]],
        env=os.environ | {"REDLATCH_TEST_ACL": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) > 100


@pytest.mark.skipif("REDLATCH_TEST_ACL" not in os.environ, reason="only then clients are restricted")
def test_every_client_of_a_restricted_run_logs_in_as_the_restricted_user(
    connect: Face, three: list[str], name: str
) -> None:
    lock = connect(three).lock(name)
    assert lock.acquire()
    for url in three:
        users = {each["user"] for each in ask(url).client_list()}
        assert users == {USER, "default"}
    lock.release()


def test_plain_and_fenced_locks_need_only_the_line_that_the_documentation_gives(name: str) -> None:
    line = next(line for line in OPERATIONS.read_text().splitlines() if line.startswith("ACL SETUSER locks "))
    with embedded.masters(3) as urls:
        for url in urls:
            try:
                ask(url).execute_command(*line.split())
            except redis.ResponseError as error:
                # The server does not know this subcommand.
                pytest.skip(str(error))
        with Client([url.replace("//", "//locks:password@") for url in urls], prefix="lock:") as client:
            given: list[dict[str, Any]] = [{}, {"fence": True}]
            for options in given:
                with client.lock(name, **options) as lock:
                    lock.extend()
                    assert lock.owned()
                    assert not client.lock(name).acquire(timeout=0.05)
        for url in urls:
            assert {refused["object"] for refused in ask(url).acl_log()} <= {"delifeq", "delex", "config|get"}


def test_a_cluster_needs_only_the_rights_and_the_rule_that_its_page_adds() -> None:
    line = next(line for line in OPERATIONS.read_text().splitlines() if line.startswith("ACL SETUSER locks "))
    page = OPERATIONS.with_name("cluster.md").read_text()
    right, asking, rule = "+cluster|slots", "+asking", "~{[0-9]*}*?guard"
    assert f"`{right}`" in page and f"`{asking}`" in page and f"`{rule}`" in page
    made = cluster(replicas=0)
    with made as urls:
        url = made.url.replace("//", "//locks:password@")

        def allow(*words: str) -> None:
            for node in urls:
                ask(node).execute_command("ACL", "SETUSER", "locks", *words)

        allow(*line.split()[3:])
        with pytest.raises(ConfigurationError, match=r"grant the right.*'cluster\|slots'"):
            lock_in_all_shards(url, "lock:")
        allow(right)
        lock_in_all_shards(url, "lock:")
        made.begin_move("lock:plain", (made.shard_of("lock:plain") + 1) % made.shards)
        with Client(url, prefix="lock:") as client:
            with pytest.raises(QuorumUnavailable, match="ASK"):
                client.lock("plain").acquire()
            allow(asking)
            with client.lock("plain") as lock:
                lock.extend()
        made.finish_move("lock:plain")
        allow("resetkeys", "~{lock}*", "~name*", "~{name*")
        for prefix in ("{lock}", ""):
            with pytest.raises(ConfigurationError, match=r"the guard needs .*docs/cluster\.md"):
                lock_in_all_shards(url, prefix)
        allow(rule)
        for prefix in ("{lock}", ""):
            lock_in_all_shards(url, prefix)


def lock_in_all_shards(url: str, prefix: str) -> None:
    with Client(url, prefix=prefix) as client:
        client.connect(require="all")
        for number in range(20):
            with client.lock(f"name-{number}", fence=True) as lock:
                lock.extend()


@pytest.mark.parametrize("missing", ["pttl", "pexpire", "zremrangebyscore", "zcount", "exists"])
def test_a_user_without_a_right_leaves_no_key_without_a_ttl(missing: str, name: str) -> None:
    with embedded.masters(1) as [url]:
        admin = ask(url)
        known = [right for right in rights("new") if right not in ("+delifeq", "+delex")]
        # Without these rights nothing can be undone.
        given = ["-@all", *known, f"-{missing}", "-zrem", "-hdel"]
        admin.execute_command("ACL", "SETUSER", "locks", "reset", "on", ">s3cr3t", "~*", "resetchannels", *given)
        with Client(url.replace("//", "//locks:s3cr3t@"), guard=None) as client:
            for lock in (client.semaphore(name, 3), client.rw_lock(name).read(), client.rw_lock(name).write()):
                with contextlib.suppress(QuorumUnavailable):
                    lock.acquire(blocking=False)
            with contextlib.suppress(QuorumUnavailable):
                client.fair_lock(name).acquire(timeout=0.05)
            assert [key for key in admin.keys() if admin.pttl(key) == -1] == []


def test_the_documentation_lists_the_rights() -> None:
    found = rights("new")
    assert {"+set", "+get", "+evalsha", "+client|tracking", "+zadd", "+delifeq"} <= set(found)
    assert not any("all" in right or "@" in right for right in found)
