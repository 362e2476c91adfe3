"""Row 58: a user without a right gets an error that names the right, and no script leaves partial changes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.exceptions
from support.faces import Face, ask, await_true, wins
from support.masters import Farm

from redlatch import Client, QuorumUnavailable, impl
from redlatch.votes import condition_scripts as condition
from redlatch.votes import family_scripts as family
from redlatch.votes import scripts
from redlatch.votes.key import name_of
from redlatch.votes.scripts import Script

pytestmark = pytest.mark.each_server

TTL, ALIVE = "600000", "60000"
COMMAND = re.compile(r'redis\.p?call\("(\w+)"')

# A script and its arguments, or a command on the key with this suffix.
Step = tuple[Any, ...]

C1, C2, C3, C4 = [str(family.BELLS + number) for number in range(1, 5)]

# This client is new in the queue.
ASKED: Step = (family.FAIR_ACQUIRE, "t1", TTL, C1, "1000000", ALIVE, "1")
BEHIND: Step = (family.FAIR_ACQUIRE, "t2", TTL, C2, "1000001", ALIVE, "1")
GONE: Step = ("del", "")
FIRST_DIED: Step = ("zadd", "two", "XX", "1", C2)
THIRD: Step = (family.FAIR_ACQUIRE, "t3", TTL, C3, "1000002", ALIVE, "1")
FAR: Step = (family.FAIR_ACQUIRE, "t4", TTL, C4, "9000000", ALIVE, "1")
READ: Step = (family.READ_ACQUIRE, "r1", TTL)
WRITE: Step = (family.WRITE_ACQUIRE, "w1", TTL, ALIVE, "w1")
WRITE_TOO: Step = (family.WRITE_ACQUIRE, "w2", TTL, ALIVE, "w2")
LEFT: Step = (family.READ_RELEASE, "r1")
SLOT: Step = (family.SLOT_ACQUIRE, "s1", TTL, "0", "0", "2", "2")
SET: Step = ("set", "", "mine", "PX", TTL)
HIGH: Step = ("set", "fence", "9", "PX", TTL)

# Two waiters of a condition, a call above both, and the death of the first one; counts of a latch of two.
FIRST_WAITS: Step = (condition.CALL_WAIT, "1000001", TTL, TTL, "1")
SECOND_WAITS: Step = (condition.CALL_WAIT, "1000002", TTL, TTL, "1")
CALLED: Step = (condition.CALL_NOTIFY, "2000000", "1", TTL)
FIRST_ENDS: Step = ("zrem", "", "1000001")
COUNTED: Step = (condition.LATCH_ADD, TTL, "2", "7")

# For each scene: the steps that a user with all rights runs first, and the call of the user without one right.
SCENES: dict[str, tuple[list[Step], Step]] = {
    "release": ([SET], (scripts.RELEASE, "mine")),
    "extend": ([SET], (scripts.EXTEND, "mine", "900000")),
    "extend, not shortened": ([SET], (scripts.EXTEND, "mine", "1000")),
    "owned": ([SET], (scripts.OWNED, "mine")),
    "locked": ([SET], (scripts.LOCKED,)),
    "fenced": ([], (scripts.ACQUIRE_FENCED, "mine", TTL, "1", "2")),
    "fenced, low number": ([HIGH], (scripts.ACQUIRE_FENCED, "mine", TTL, "1", "2")),
    "fenced, high number": ([HIGH], (scripts.ACQUIRE_FENCED, "mine", TTL, "10", "12")),
    "confirm": ([SET, HIGH], (scripts.CONFIRM, "mine", "10", "12")),
    "pulse": ([SET], (scripts.PULSE, "mine", "900000")),
    "fair, free": ([], ASKED),
    "fair, taken": ([ASKED], BEHIND),
    "fair, taken and others wait": ([ASKED, BEHIND], THIRD),
    "fair, free and another one is first": ([ASKED, BEHIND, GONE], THIRD),
    "fair, free and the first is dead": ([ASKED, BEHIND, GONE, FIRST_DIED], THIRD),
    "fair, called": ([ASKED, BEHIND, GONE], (family.FAIR_ACQUIRE, "t5", TTL, C2, "1000001", ALIVE, "0")),
    "fair, not called": ([ASKED, BEHIND], (family.FAIR_ACQUIRE, "t5", TTL, C2, "1000001", ALIVE, "0")),
    "fair, changed": ([ASKED, BEHIND, GONE], (family.FAIR_ACQUIRE, "t5", TTL, C2, "1000005", ALIVE, "2")),
    "fair, changed and alone": ([], (family.FAIR_ACQUIRE, "t5", TTL, C2, "1000005", ALIVE, "2")),
    "fair, ticket too low": ([ASKED, BEHIND, FAR], (family.FAIR_ACQUIRE, "t5", TTL, C2, "1000001", ALIVE, "2")),
    "fair release": ([ASKED], (family.FAIR_RELEASE, "t1", C1, "1000000")),
    "fair release, others wait": ([ASKED, BEHIND], (family.FAIR_RELEASE, "t1", C1, "1000000")),
    "fair release, the first is dead": (
        [ASKED, BEHIND, THIRD, FIRST_DIED],
        (family.FAIR_RELEASE, "t1", C1, "1000000"),
    ),
    "fair, leave": ([ASKED, BEHIND, THIRD], (family.FAIR_RELEASE, "t2", C2, "1000001")),
    "fair, leave while it is free": ([ASKED, BEHIND, THIRD, GONE], (family.FAIR_RELEASE, "t2", C2, "1000001")),
    "read": ([], READ),
    "read beside a reader": ([READ], (family.READ_ACQUIRE, "r2", "900000")),
    "read release": ([READ], (family.READ_RELEASE, "r1")),
    "read extend": ([READ], (family.READ_EXTEND, "r1", "900000")),
    "read owned": ([READ], (family.READ_OWNED, "r1")),
    "write": ([], WRITE),
    "write, had waited": ([READ, WRITE, LEFT], WRITE),
    "write, readers are in": ([READ], WRITE),
    "write, another one waits": ([READ, WRITE], WRITE_TOO),
    "write release": ([WRITE], (family.WRITE_RELEASE, "w1", "w1")),
    "write, give up beside another one": ([READ, WRITE, WRITE_TOO], (family.WRITE_RELEASE, "w1", "w1")),
    "write, give up as the last one": ([READ, WRITE], (family.WRITE_RELEASE, "w1", "w1")),
    "write, give up as the last one, nobody is in": ([READ, WRITE, LEFT], (family.WRITE_RELEASE, "w1", "w1")),
    "write extend": ([WRITE], (family.WRITE_EXTEND, "w1", "900000")),
    "write owned": ([WRITE], (family.WRITE_OWNED, "w1")),
    "slot": ([], SLOT),
    "slot beside another one": ([SLOT], (family.SLOT_ACQUIRE, "s2", "900000", "1", "0", "2", "2")),
    "slot, taken": ([SLOT], (family.SLOT_ACQUIRE, "s2", TTL, "0", "0", "2", "2")),
    "slot release": ([SLOT], (family.SLOT_RELEASE, "s1", "0")),
    "slot extend": ([SLOT], (family.SLOT_EXTEND, "s1", "0", "900000")),
    "slot owned": ([SLOT], (family.SLOT_OWNED, "s1", "0")),
    "permit": ([], (family.RATE_ACQUIRE, "s1", TTL, "0", "0", "1", "1")),
    "permit, another one is free": ([SLOT], (family.RATE_ACQUIRE, "s2", TTL, "0", "0", "2", "2")),
    "permit, all are taken": ([SLOT], (family.RATE_ACQUIRE, "s2", TTL, "0", "0", "1", "1")),
    "full": ([SLOT], (family.FULL, "2")),
    "wait": ([], FIRST_WAITS),
    "wait beside another one": ([FIRST_WAITS], SECOND_WAITS),
    "wait, ticket too low": ([SECOND_WAITS], FIRST_WAITS),
    "wait, called": ([FIRST_WAITS, CALLED], (condition.CALL_WAIT, "1000001", TTL, TTL, "0")),
    "wait, the first is dead": (
        [FIRST_WAITS, SECOND_WAITS, CALLED, FIRST_ENDS],
        (condition.CALL_WAIT, "1000002", TTL, TTL, "0"),
    ),
    "notify nobody": ([], CALLED),
    "notify": ([FIRST_WAITS, SECOND_WAITS], CALLED),
    "notify all": ([FIRST_WAITS, SECOND_WAITS], (condition.CALL_NOTIFY, "2000000", "0", TTL)),
    "leave": ([FIRST_WAITS, SECOND_WAITS], (condition.CALL_LEAVE, "1000001", "0", TTL)),
    "leave, called": ([FIRST_WAITS, SECOND_WAITS, CALLED], (condition.CALL_LEAVE, "1000001", "0", TTL)),
    "leave, used": ([FIRST_WAITS, SECOND_WAITS, CALLED], (condition.CALL_LEAVE, "1000001", "2000000", TTL)),
    "latch, look": ([COUNTED], (condition.LATCH_LOOK,)),
    "latch": ([], COUNTED),
    "latch, second count": ([COUNTED], (condition.LATCH_ADD, TTL, "3", "8")),
    "latch, last count": ([COUNTED], (condition.LATCH_ADD, TTL, "2", "8")),
    "latch, count once more": ([COUNTED], COUNTED),
    "latch, open": ([COUNTED], (condition.LATCH_OPEN, TTL)),
    "latch, at": ([COUNTED], (condition.LATCH_AT, "1")),
    "latch, undo": ([COUNTED], (condition.LATCH_UNDO, "7")),
    "signal": ([SET], (family.SIGNAL_RELEASE, "mine", "1000")),
}


def rights_of(*called: Script) -> list[str]:
    """Return the commands that the scripts call."""
    return sorted({right for script in called for right in COMMAND.findall(script.text.decode())})


CASES = [(scene, right) for scene, (_, call) in SCENES.items() for right in rights_of(call[0])]

SUFFIXES = {
    scripts.ACQUIRE_FENCED: ["", "fence"],
    scripts.CONFIRM: ["", "fence"],
}


def key_of(name: str, suffix: str) -> str:
    return f"{{{name}}}\0{suffix}" if suffix else name


def run(master: redis.Redis, name: str, step: Step) -> Any:
    what, *arguments = step
    if not isinstance(what, Script):
        return master.execute_command(what, key_of(name, arguments[0]), *arguments[1:])
    keys = [key_of(name, suffix) for suffix in SUFFIXES.get(what, ["", "one", "two", "three"])][: what.keys]
    return master.eval(what.text.decode(), len(keys), *keys, *arguments)


def contents(master: Any, name: str) -> dict[str, Any]:
    """Return all keys under the name with their values, without ttls."""
    read: dict[str, Callable[[str], Any]] = {
        "string": master.get,
        "hash": master.hgetall,
        "list": lambda key: master.lrange(key, 0, -1),
        "zset": lambda key: master.zrange(key, 0, -1, withscores=True),
    }
    return {key: read[master.type(key)](key) for key in keys(master, name)}


def without_ttl(master: redis.Redis, name: str) -> list[str]:
    return [key for key in keys(master, name) if master.pttl(key) == -1]


def keys(master: Any, name: str) -> list[str]:
    return [key for key in master.keys(f"*{name}*") if name_of(key.encode())[0] == name.encode()]


@pytest.fixture
def master(farm: Any, server_kind: str) -> Iterator[redis.Redis]:
    """A client of one server; the test runs for each kind of server."""
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield master


@contextlib.contextmanager
def user_without(master: redis.Redis, name: str, right: str) -> Iterator[redis.Redis]:
    """Log in as a user without one right."""
    user, where = f"user-of-{name}", master.connection_pool.connection_kwargs
    master.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "+@all", f"-{right}")
    try:
        login: dict[str, Any] = {"username": user, "password": "pw", "retry": None, "decode_responses": True}
        with redis.Redis(host=where["host"], port=where["port"], **login) as limited:
            yield limited
    finally:
        master.execute_command("ACL", "DELUSER", user)


@pytest.mark.parametrize(("scene", "right"), CASES)
def test_row_58_a_script_without_a_right_works_or_names_the_right_and_changes_nothing(
    master: redis.Redis, name: str, scene: Any, right: Any
) -> None:
    steps, call = SCENES[scene]
    for step in steps:
        run(master, f"{name}-whole", step)
        run(master, name, step)
    whole = run(master, f"{name}-whole", call)
    before = contents(master, name)
    with user_without(master, name, right) as limited:
        try:
            answer = run(limited, name, call)
        except redis.exceptions.ResponseError as error:
            assert re.search(rf"'{right}'|can't run this command", str(error))
            assert contents(master, name) == before
        else:
            # The answer is the same as with all rights.
            assert (answer > 0) == (whole > 0)
    assert without_ttl(master, name) == []


@pytest.mark.parametrize("right", sorted({*rights_of(family.FAIR_UNDO)} - {"get", "del"}))
def test_row_58_an_undo_removes_the_key_whatever_other_right_is_missing(
    master: redis.Redis, name: str, right: Any
) -> None:
    run(master, name, ASKED)
    with user_without(master, name, right) as limited, contextlib.suppress(redis.exceptions.ResponseError):
        run(limited, name, (family.FAIR_UNDO, "t1", "c1", "1000000", ALIVE))
    assert not master.exists(name)
    assert without_ttl(master, name) == []


# --- errors that callers get ----------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[Any, str], Any], tuple[Script, ...]]] = {
    "fenced": (lambda client, name: client.lock(name, fence=True), (scripts.ACQUIRE_FENCED, scripts.EXTEND)),
    "fair": (lambda client, name: client.fair_lock(name), (family.FAIR_ACQUIRE, family.FAIR_RELEASE)),
    "reader": (lambda client, name: client.rw_lock(name).read(), (family.READ_ACQUIRE, family.READ_EXTEND)),
    "writer": (
        lambda client, name: client.rw_lock(name).write(),
        (family.WRITE_ACQUIRE, family.WRITE_EXTEND, family.WRITE_RELEASE),
    ),
    "semaphore": (
        lambda client, name: client.semaphore(name, 2),
        (family.SLOT_ACQUIRE, family.SLOT_EXTEND, family.SLOT_RELEASE),
    ),
}
RIGHTS = [(kind, right) for kind, (_, called) in KINDS.items() for right in rights_of(*called)]


def names(error: QuorumUnavailable, right: str) -> bool:
    """Return whether the cause of every master names the missing right."""
    causes = error.causes.values()
    named = [isinstance(cause, redis.exceptions.NoPermissionError) and f"'{right}'" in str(cause) for cause in causes]
    return bool(named) and all(named)


def restricted(url: str, right: str) -> str:
    """Create a user without one right; return the URL to log in with."""
    ask(url).execute_command("ACL", "SETUSER", "few", "reset", "on", ">s3cr3t", "~*", "+@all", f"-{right}")
    return url.replace("//", "//few:s3cr3t@")


@pytest.mark.parametrize(("kind", "right"), RIGHTS)
def test_row_58_a_missing_right_is_named_and_never_reported_as_a_held_lock(
    implementation: impl.Implementation, url: str, name: str, kind: Any, right: Any
) -> None:
    make, _ = KINDS[kind]
    with Client(restricted(url, right), guard=None) as client:
        lock = make(client, name)
        try:
            # The name is free.
            assert lock.acquire(blocking=False) is True
        except QuorumUnavailable as error:
            assert names(error, right)
            await_true(lambda: left_behind(url, name) == [])
            return
        for call in (lock.extend, lock.release):
            try:
                call()
            except QuorumUnavailable as error:
                assert names(error, right)
    assert [key for key in left_behind(url, name) if ask(url).pttl(key) == -1] == []


def left_behind(url: str, name: str) -> list[bytes]:
    return [key for key in ask(url).keys(f"*{name}*") if not key.endswith(b"\0fence")]


def test_row_58_a_writer_without_del_gets_the_lock_and_its_release_names_the_right(
    connect: Face, url: str, name: str
) -> None:
    writer = connect(restricted(url, "del"), guard=None).rw_lock(name).write()
    assert writer.acquire(blocking=False)
    with pytest.raises(QuorumUnavailable, match="'del'"):
        writer.release()
    # Readers stay out until the lock has expired.
    assert not wins(connect(url).rw_lock(name).read())


@pytest.mark.parametrize(
    ("kind", "right"), [("reader", "zadd"), ("writer", "set"), ("semaphore", "hset"), ("fair", "set")]
)
def test_row_58_when_one_of_three_masters_refuses_a_right_the_others_decide(
    connect: Face, farm: Farm, name: str, kind: Any, right: Any
) -> None:
    """The lock works and leaves nothing on the refusing master; a rival is refused without an error."""
    urls = farm.urls(3)
    few = [restricted(urls[0], right), *urls[1:]]
    make, _ = KINDS[kind]
    client = connect(few, guard=None)
    lock = make(client, name)
    assert lock.acquire(blocking=False)
    lock.extend()
    assert lock.owned()
    await_true(lambda: left_behind(urls[0], name) == [])
    rival = client.rw_lock(name).write() if kind == "reader" else make(client, name)
    assert kind == "semaphore" or rival.acquire(blocking=False) is False
    lock.release()
    await_true(lambda: not any(left_behind(each, name) for each in urls))
