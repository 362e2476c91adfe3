"""`redlatch doctor`: each finding with its cure, on real servers that are set up wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from redlatch import Client
from redlatch.cli import build
from redlatch.guard.handover import names_of
from redlatch.guard.marker import LEFT, MARKER, PENDING, PREPARED, Marker
from redlatch.operate import doctor
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
    with pytest.MonkeyPatch.context() as patch:
        # Over a short time the rates of clocks are compared badly: there may be a finding about them as well.
        patch.setattr(doctor, "WATCHED", 0.1)
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
        "its clients have this list of masters; the longest ttl in use is",
    ):
        assert sum(part in text for text in found["fine"]) == 3, part
    assert examined("--strict", *three)[0].exit_code == 1
    said = CliRunner().invoke(build(), ["doctor", *three]).stdout
    assert "warning  3 of 3 masters are on 127.0.0.1" in said
    assert "cure: put each master on a machine of its own" in said


def test_one_master_is_fine_and_two_are_no_better(url: str, urls: list[str]) -> None:
    assert examined(url)[1]["warning"] == []
    told(urls[:2], "2 masters tolerate no more failures than 1", "warning")


def test_a_master_that_is_down(three: list[str]) -> None:
    told([*three[:2], "redis://127.0.0.1:1"], "it cannot be used: ", "unsafe")


def test_a_wrong_password_has_its_own_cure(url: str) -> None:
    done = CliRunner().invoke(build(), ["doctor", url.replace("redis://", "redis://nobody:wrong@")])
    assert done.exit_code == 2
    assert "cure: give the right user and password in the URL" in done.stdout
    assert "nobody:wrong" not in done.stdout


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
        # Without the right to read it, the answer is not that it is fine.
        master.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
        limited = masters.urls[0].replace("redis://", "redis://limited:pw@")
        told([limited], "the right to read min-replicas-to-write (CONFIG GET) is missing", "warning")


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
        assert not [key for key in server.scan_iter("*redlatch-doctor*") if b"fence" not in key]


# --- the guard's markers --------------------------------------------------------------------------------


def test_masters_that_no_client_has_used(fleet: Fleet) -> None:
    told(fleet(1).urls, "no client with a guard has used it lately with this prefix", "fine")


def test_a_master_that_is_in_another_list(three: list[str]) -> None:
    told(three[:1], f"has it in the list {', '.join(sorted(addresses(three)))}", "unsafe")
    again = [url.replace("127.0.0.1", "localhost") for url in three]
    told(again, f"has it in the list {', '.join(sorted(addresses(three)))}", "warning")


def test_a_guard_with_other_options(url: str) -> None:
    told([url], "uses it with trust_persistence=False", "unsafe", "--trust-persistence")


def test_a_marker_that_is_missing(fleet: Fleet) -> None:
    urls = fleet(3).urls
    with Client(urls) as client:
        client.connect(require="all")
    with redis.Redis.from_url(urls[0]) as server:
        server.delete(MARKER)
    told(urls, "the guard's marker is missing, but others have theirs", "warning")


def test_a_marker_that_is_not_ours(fleet: Fleet) -> None:
    urls = fleet(1).urls
    with redis.Redis.from_url(urls[0]) as server:
        server.set(MARKER, "something else")
    told(urls, "it has a marker that is not ours", "unsafe")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stage": LEFT, "successors": ("10.0.0.1:6379",)}, "it was left for 10.0.0.1:6379"),
        ({"stage": PENDING, "previous": ("10.0.0.1:6379",)}, "it waits for the handover from 10.0.0.1:6379"),
        ({"stage": PREPARED}, "its guard's marker is not final"),
    ],
)
def test_a_marker_that_lets_nobody_vote(fleet: Fleet, changes: dict[str, Any], text: str) -> None:
    urls = fleet(1).urls
    with Client(urls) as client:
        client.connect(require="all")
    with redis.Redis.from_url(urls[0]) as server:
        stored: Any = server.get(MARKER)
        marker = Marker.read(stored)
        assert marker is not None and marker.masters == names_of(addresses(urls))
        server.set(MARKER, replace(marker, **changes).text())
    told(urls, text, "warning")


def test_a_user_without_rights_to_the_marker(url: str, name: str) -> None:
    with redis.Redis.from_url(url) as server:
        server.execute_command("ACL", "SETUSER", name, "on", ">pw", "~redlatch-doctor*", "+@all")
        limited = url.replace("redis://", f"redis://{name}:pw@")
        try:
            told([limited], "the guard needs the rights to GET and EVAL", "unsafe")
        finally:
            server.execute_command("ACL", "DELUSER", name)


def addresses(urls: list[str]) -> tuple[str, ...]:
    return tuple(url.removeprefix("redis://").removesuffix("/0") for url in urls)
