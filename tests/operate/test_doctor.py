"""`redlatch doctor`: each finding with its cure, on real servers that are set up wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from redlatch.cli import build
from redlatch.testing import embedded

Fleet = Callable[..., embedded.Masters]


def examined(*words: str) -> tuple[Result, dict[str, list[str]]]:
    """Run the command; return its result and the texts of its findings by their level."""
    done = CliRunner().invoke(build(), ["doctor", "--json", *words])
    found: dict[str, list[str]] = {"fine": [], "warning": [], "unsafe": []}
    for finding in json.loads(done.stdout)["findings"]:
        found[finding["level"]].append(finding["text"])
        assert finding["cure"] or finding["level"] == "fine"
    return done, found


def told(urls: list[str], part: str, level: str, *words: str) -> None:
    """Check that a finding of this level is told, with the exit status that belongs to the level."""
    done, found = examined(*words, *urls)
    assert any(part in text for text in found[level]), found
    if level == "unsafe":
        assert done.exit_code == 2


def test_masters_that_are_fine(three: list[str]) -> None:
    done, found = examined(*three)
    # They are on one machine, and that is told.
    assert done.exit_code == 0 and found["unsafe"] == []
    assert found["warning"] == ["3 of 3 masters are on 127.0.0.1, and fail together with it"]
    for part in (
        "answers in",
        "releases with one native command",
        "locks of all kinds can be taken",
        "its clock differs",
    ):
        assert sum(part in text for text in found["fine"]) == 3, part
    assert examined("--strict", *three)[0].exit_code == 1
    said = CliRunner().invoke(build(), ["doctor", *three]).stdout
    assert "warning  3 of 3 masters are on 127.0.0.1" in said
    assert "cure: put each master on a machine of its own" in said


def test_one_master_is_fine_and_two_are_no_better(urls: list[str]) -> None:
    assert examined(urls[0])[1]["warning"] == []
    told(urls[:2], "2 masters tolerate no more failures than 1", "warning")


def test_a_master_that_is_down(three: list[str]) -> None:
    told([*three[:2], "redis://127.0.0.1:1"], "it cannot be used: ", "unsafe")


def test_a_server_that_is_named_twice(three: list[str]) -> None:
    again = three[0].replace("127.0.0.1", "localhost")
    told([*three, again], "it is the same server as another master", "unsafe")


@pytest.mark.parametrize(("memory", "level"), [("0", "warning"), ("100mb", "unsafe")])
def test_a_server_that_evicts(fleet: Fleet, memory: str, level: str) -> None:
    config = {"maxmemory-policy": "allkeys-lru", "maxmemory": memory}
    told(fleet(1, config=config).urls, "allkeys-lru", level)


def test_a_server_whose_persistence_is_trusted_for_nothing(url: str) -> None:
    told([url], "a restart may lose locks", "unsafe", "--trust-persistence")


def test_a_server_that_keeps_all_it_was_told(fleet: Fleet) -> None:
    urls = fleet(1, config={"appendonly": "yes", "appendfsync": "always"}).urls
    done, found = examined("--trust-persistence", *urls)
    assert done.exit_code == 0 and found["unsafe"] == found["warning"] == []


def test_a_replica_and_a_master_that_does_not_need_it(fleet: Fleet) -> None:
    masters = fleet(2)
    with redis.Redis.from_url(masters.urls[1]) as replica, redis.Redis.from_url(masters.urls[0]) as master:
        port = masters.urls[0].rpartition(":")[2]
        replica.replicaof("127.0.0.1", port)
        told([masters.urls[1]], "is a slave, not a master", "unsafe")
        info: Any = {}
        while not info.get("connected_slaves"):
            info = master.info("replication")
        told([masters.urls[0]], "min-replicas-to-write is 0", "warning")


def test_a_node_of_a_cluster(fleet: Fleet) -> None:
    done, found = examined(*fleet(1, config={"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}).urls)
    assert done.exit_code == 2
    assert any("a node of a cluster" in text for text in found["unsafe"])


def test_a_user_without_rights(url: str, name: str) -> None:
    rights = "+set +get +del +pttl +evalsha +eval +script|load +hello +info +time +ping +client +select +delifeq"
    with redis.Redis.from_url(url) as server:
        server.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", "-@all", *rights.split())
        try:
            limited = url.replace("redis://", f"redis://{name}:pw@")
            done, found = examined(limited)
        finally:
            server.execute_command("ACL", "DELUSER", name)
    assert done.exit_code == 2
    assert any(text.startswith("a lock cannot be taken") and "pexpire" in text for text in found["unsafe"]), found
    assert any(text.startswith("a semaphore cannot be taken") for text in found["warning"])
    assert "pw" not in done.stdout


def test_the_doctor_leaves_nothing_behind(url: str) -> None:
    examined(url)
    with redis.Redis.from_url(url) as server:
        assert not [key for key in server.scan_iter("redlatch-doctor*") if b"fence" not in key]
