"""The Lua scripts of the lock family on real servers of every kind; `tests/test_fair.py` has those of the fair lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.masters import Farm

from redlatch.votes import family_scripts as family
from redlatch.votes import scripts
from redlatch.votes.scripts import Script

pytestmark = pytest.mark.each_server

MINE, OTHERS = "my-token", "another-token"
LONG = "600000"
ALIVE = "2500"
# A score that has expired long ago.
EXPIRED = 1
ALL_TAKEN = 1 << 50


class Scene:
    """One name on one server, and the keys that the family gives it."""

    def __init__(self, master: Any, name: str) -> None:
        self.master = master
        self.name = name
        self.one = f"{{{name}}}\0one"
        self.two = f"{{{name}}}\0two"

    def run(self, script: Script, *arguments: str) -> Any:
        """Run a script on as many keys as it has."""
        keys = [self.name, self.one, self.two][: script.keys]
        return self.master.eval(script.text.decode(), len(keys), *keys, *arguments)

    def write(self, token: str = MINE, waiter: str = "") -> Any:
        return self.run(family.WRITE_ACQUIRE, token, LONG, ALIVE, waiter or token)

    def slot(self, token: str, slot: str, permits: str = "2") -> Any:
        return self.run(family.SLOT_ACQUIRE, token, LONG, slot, "0", permits, permits)

    def keys(self) -> dict[str, int]:
        """Return the ttl of each key in milliseconds."""
        return {key: self.master.pttl(key) for key in (self.name, self.one, self.two) if self.master.exists(key)}


@pytest.fixture
def scene(farm: Farm, server_kind: str, name: str) -> Iterator[Scene]:
    """One server of each kind in turn."""
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield Scene(master, name)


def test_all_has_every_script_once() -> None:
    # Each handshake loads the scripts of this list. A script outside it would be sent in full after each reconnect.
    assert {value for value in vars(family).values() if isinstance(value, Script)} == set(family.ALL)
    shas = {script.sha for script in (*family.ALL, *scripts.ALL)}
    assert len(shas) == len(family.ALL) + len(scripts.ALL)


def test_the_sha_of_a_script_is_the_servers(scene: Scene) -> None:
    for script in family.ALL:
        assert scene.master.script_load(script.text.decode()) == script.sha.decode()


# --- readers and writers ---------------------------------------------------------------------------------


def test_readers_share_the_lock_and_each_key_has_a_ttl(scene: Scene) -> None:
    assert scene.run(family.READ_ACQUIRE, MINE, LONG) == 1
    assert scene.run(family.READ_ACQUIRE, OTHERS, "1000") == 1
    # The key lives as long as its last member.
    assert scene.keys() == {scene.name: pytest.approx(600_000, abs=60_000)}
    assert scene.run(family.READ_RELEASE, MINE) == 1
    assert scene.run(family.READ_OWNED, MINE) == 0
    assert scene.run(family.READ_OWNED, OTHERS) == 1
    assert scene.run(family.READ_RELEASE, MINE) == 0


def test_a_reader_that_has_expired_has_nothing_and_lets_a_writer_in(scene: Scene) -> None:
    assert scene.run(family.READ_ACQUIRE, MINE, LONG) == 1
    scene.master.zadd(scene.name, {MINE: EXPIRED})
    assert scene.run(family.READ_OWNED, MINE) == 0
    assert scene.run(family.READ_EXTEND, MINE, LONG) == 0
    assert scene.run(family.FULL, "1") == 0
    assert scene.write(OTHERS) == 1
    assert scene.master.zrange(scene.name, 0, -1) == ["w"]


def test_a_writer_is_alone_and_only_its_token_releases_it(scene: Scene) -> None:
    assert scene.write() == 1
    assert set(scene.keys()) == {scene.name, scene.one}
    assert all(0 < pttl <= 600_000 for pttl in scene.keys().values())
    assert scene.write(OTHERS) == 0
    assert scene.run(family.READ_ACQUIRE, OTHERS, LONG) == 0
    assert scene.run(family.WRITE_OWNED, OTHERS) == 0
    assert scene.run(family.WRITE_RELEASE, OTHERS, OTHERS) == 0
    assert scene.run(family.WRITE_OWNED, MINE) == 1
    assert scene.run(family.WRITE_RELEASE, MINE, MINE) == 1
    assert not scene.keys()


def test_a_refused_writer_keeps_new_readers_out_until_it_leaves(scene: Scene) -> None:
    assert scene.run(family.READ_ACQUIRE, "reader", LONG) == 1
    before = scene.master.zrange(scene.name, 0, -1, withscores=True)
    assert scene.write() == 0
    assert scene.run(family.READ_ACQUIRE, OTHERS, LONG) == 0
    # A refusal does not change the key that the waiters watch.
    assert scene.master.zrange(scene.name, 0, -1, withscores=True) == before
    assert 0 < scene.master.pttl(scene.two) <= 2500
    assert scene.run(family.WRITE_RELEASE, MINE, MINE) == 0
    assert scene.run(family.READ_ACQUIRE, OTHERS, LONG) == 1
    # Nor does a writer that leaves; it only makes the server push.
    assert set(scene.master.zrange(scene.name, 0, -1)) == {"reader", OTHERS}


def test_a_waiting_writer_that_is_dead_keeps_nobody_out(scene: Scene) -> None:
    scene.master.zadd(scene.two, {"dead": EXPIRED})
    assert scene.run(family.READ_ACQUIRE, MINE, LONG) == 1


def test_a_writer_that_wins_removes_only_its_own_name(scene: Scene) -> None:
    assert scene.run(family.READ_ACQUIRE, "reader", LONG) == 1
    assert scene.write(MINE, "first") == scene.write(OTHERS, "second") == 0
    assert scene.run(family.READ_RELEASE, "reader") == 1
    assert scene.write("later-token", "first") == 1
    assert scene.master.zrange(scene.two, 0, -1) == ["second"]


# --- semaphores ------------------------------------------------------------------------------------------


def test_a_slot_has_one_holder_and_a_refusal_reports_the_taken_slots(scene: Scene) -> None:
    assert scene.slot(MINE, "1", "3") == 1
    assert scene.slot(OTHERS, "1", "3") == -0b010
    assert scene.slot(OTHERS, "0", "3") == 1
    assert scene.slot("third", "0", "3") == -0b011
    assert scene.slot("third", "2", "3") == 1
    assert scene.slot("fourth", "2", "3") == -(0b111 + ALL_TAKEN)
    assert set(scene.keys()) == {scene.name, scene.one}
    assert all(0 < pttl <= 600_000 for pttl in scene.keys().values())


def test_a_slot_is_freed_and_extended_only_with_its_token(scene: Scene) -> None:
    assert scene.slot(MINE, "0") == 1
    assert scene.run(family.SLOT_OWNED, OTHERS, "0") == scene.run(family.SLOT_OWNED, MINE, "1") == 0
    assert scene.run(family.SLOT_EXTEND, OTHERS, "0", LONG) == 0
    assert scene.run(family.SLOT_RELEASE, OTHERS, "0") == 0
    assert scene.run(family.SLOT_OWNED, MINE, "0") == 1
    assert scene.run(family.SLOT_RELEASE, MINE, "0") == 1
    assert not scene.keys()


def test_an_expired_slot_is_free_and_no_longer_its_holders(scene: Scene) -> None:
    assert scene.slot(MINE, "0", "1") == 1
    assert scene.run(family.FULL, "1") == 1
    scene.master.zadd(scene.name, {"0": EXPIRED})
    assert scene.run(family.FULL, "1") == 0
    assert scene.run(family.SLOT_OWNED, MINE, "0") == 0
    assert scene.run(family.SLOT_EXTEND, MINE, "0", LONG) == 0
    assert scene.slot(OTHERS, "0", "1") == 1
    assert scene.run(family.SLOT_RELEASE, MINE, "0") == 0


# --- extensions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reader", "writer", "slot"])
def test_row_39_no_extension_of_the_lock_family_shortens(scene: Scene, kind: str) -> None:
    """It shortens neither an end that is stored as a score, nor the ttl of a key."""
    calls: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], str]] = {
        "reader": ((family.READ_ACQUIRE, MINE, LONG), (family.READ_EXTEND, MINE), MINE),
        "writer": ((family.WRITE_ACQUIRE, MINE, LONG, ALIVE, MINE), (family.WRITE_EXTEND, MINE), "w"),
        "slot": ((family.SLOT_ACQUIRE, MINE, LONG, "0", "0", "1", "1"), (family.SLOT_EXTEND, MINE, "0"), "0"),
    }
    acquire, extend, member = calls[kind]
    assert scene.run(*acquire) == 1
    end: Any = scene.master.zscore(scene.name, member)
    assert scene.run(*extend, "1000") == 1
    assert scene.master.zscore(scene.name, member) == end
    assert all(pttl > 60_000 for pttl in scene.keys().values())
    assert scene.run(*extend, "1200000") == 1
    assert scene.master.zscore(scene.name, member) > end
    assert all(pttl > 600_000 for pttl in scene.keys().values())


def test_row_39_an_extension_of_a_writer_without_an_entry_is_refused(scene: Scene) -> None:
    assert scene.write() == 1
    scene.master.delete(scene.name)
    assert scene.run(family.WRITE_EXTEND, MINE, LONG) == 0
    assert not scene.master.exists(scene.name)


# --- the locks of python-redis-lock ----------------------------------------------------------------------


def test_a_release_with_a_signal_leaves_one_element_that_expires(scene: Scene) -> None:
    scene.master.set(scene.name, MINE, px=60_000)
    scene.master.rpush(scene.one, "old", "older")
    assert scene.run(family.SIGNAL_RELEASE, OTHERS, "1000") == 0
    assert scene.master.lrange(scene.one, 0, -1) == ["old", "older"]
    assert scene.run(family.SIGNAL_RELEASE, MINE, "1000") == 1
    assert scene.master.lrange(scene.one, 0, -1) == ["1"]
    assert set(scene.keys()) == {scene.one}
    assert 0 < scene.keys()[scene.one] <= 1000
