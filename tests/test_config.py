"""Every invalid argument raises an error at once, and the error names the argument."""

from __future__ import annotations

import asyncio
import decimal
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.connection
import redis.sentinel
from hypothesis import given
from hypothesis import strategies as st
from support.dialling import master_of
from support.faces import PATIENCE

from redlatch import AsyncClient, Client, Guard, Handoff, Retry, config, impl
from redlatch.errors import (
    AlreadyHeld,
    ClientClosed,
    ConfigurationError,
    LockBusy,
    LockError,
    LockLost,
    LockTimeout,
    NotOwned,
)
from redlatch.masters.listed import masters_of
from redlatch.testing import embedded

URL = "redis://127.0.0.1:6379"
PASSWORD = "s3cr3tpw"
# No float can hold this int.
HUGE = 10**400

faces = pytest.mark.parametrize("face", [Client, AsyncClient])
Face = Callable[..., Any]


# --- masters -----------------------------------------------------------------------------------------


@faces
@pytest.mark.parametrize("masters", [[], (), iter(()), {}])
def test_no_masters_are_refused(face: Face, masters: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters: at least one is needed"):
        face(masters)


@faces
@pytest.mark.parametrize("masters", [None, 5, 1.5, True])
def test_masters_that_are_no_list_are_refused(face: Face, masters: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters: .*not (NoneType|int|float|bool)"):
        face(masters)


@faces
@pytest.mark.parametrize("item", [None, 5, object(), ["redis://a"], ("localhost", 6379)])
def test_a_master_that_is_no_url_and_no_client_is_refused_with_its_place(face: Face, item: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[1\]: a URL or a redis-py client is needed"):
        face([URL, item])


@faces
@pytest.mark.parametrize("url", ["rdis://a", "nonsense://a", "redis+srv://a", "://a"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(face: Face, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: unknown scheme.*redis://.*valkeys://.*unix://"):
        face([url])


@faces
@pytest.mark.parametrize("url", ["localhost:6379", "redis:localhost", "/run/redis.sock"])
def test_a_url_without_a_scheme_is_refused(face: Face, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: a URL without a scheme"):
        face([url])


@faces
@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port",
        "redis://host:99999",
        "redis://[::1",
        "redis://host/zero",
        "redis://host?socket_timeout=soon",
        "redis://host?no_such_option=1",
        "redis://host?path=/run/a.sock",
        "unix://",
        b"redis://\xff",
    ],
)
def test_a_malformed_url_is_refused_with_its_place(face: Face, url: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[1\]: "):
        face([URL, url])


@faces
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://host?no_such_option=1", "no connection has the option 'no_such_option'"),
        ("localhost:6379", "such as redis://localhost:6379"),
        ("redis://:pa#ss@host", "must be percent-encoded"),
        ("redis://:pa/ss@host", "'/' as %2F"),
    ],
)
def test_an_error_of_a_url_suggests_the_correct_form(face: Face, url: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        face([url])


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PASSWORD}@host:port",
        f"redis://:{PASSWORD}@host:99999",
        f"redis://:{PASSWORD}@[::1",
        f"redis://user:{PASSWORD}/x@host",
        f"redis://user:x/{PASSWORD}@host",
        f"redis://user:{PASSWORD}?x@host",
        f"redis://user:{PASSWORD}#x@host",
        f"http://user:{PASSWORD}@host",
        f"user:{PASSWORD}@redis://host",
        f"{PASSWORD}@host",
        f"redis://host?password={PASSWORD}&no_such_option=1",
        f"redis://host:port?password={PASSWORD}",
        f"unix://user:{PASSWORD}@",
    ],
)
def test_the_error_of_a_malformed_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client([url])
    error: BaseException | None = caught.value
    assert PASSWORD not in repr(error) + str(error)
    assert error is not None and error.__suppress_context__ == (error.__context__ is not None)


@faces
@pytest.mark.parametrize(
    "pair",
    [
        (URL, URL),
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://localhost/1", "redis://localhost/2"),
        ("redis://localhost", "redis://LOCALHOST"),
        ("redis://:a@host", "valkey://:b@host"),
        ("unix:///run/a.sock", "unix:///run/a.sock?db=1"),
    ],
)
def test_the_same_address_twice_is_refused_with_both_places(face: Face, pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[2\]: .* is masters\[1\] already"):
        face(["redis://elsewhere", *pair])


def test_two_names_of_one_server_are_detected_when_connecting(implementation: impl.Implementation, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[[01]\]: .*run_id"):
        twice = [url, url.replace("127.0.0.1", "localhost")]
        client = Client(twice, guard=None)
        try:
            client.connect()
        finally:
            client.close()


def test_a_client_whose_with_cannot_begin_is_closed(implementation: impl.Implementation, url: str) -> None:
    twice = [url, url.replace("127.0.0.1", "localhost")]
    client, aclient = Client(twice, guard=None), AsyncClient(twice, guard=None)

    async def enter() -> None:
        with pytest.raises(ConfigurationError):
            async with aclient:
                pass
        with pytest.raises(ClientClosed):
            await aclient.connect()

    with pytest.raises(ConfigurationError), client:
        pass
    with pytest.raises(ClientClosed):
        client.connect()
    asyncio.run(enter())


@pytest.fixture(scope="module")
def replica() -> Iterator[str]:
    """A replica of a server that does not exist."""
    with embedded.masters(1) as [url]:
        with redis.Redis.from_url(url, retry=None) as server:
            server.replicaof("127.0.0.1", 1)
        yield url


def test_a_replica_is_refused_with_its_place(
    implementation: impl.Implementation, urls: list[str], replica: str
) -> None:
    client = Client([urls[0], replica], guard=None)
    try:
        with pytest.raises(ConfigurationError, match=r"^masters\[1\]: .*is a slave, not a master"):
            client.connect()
    finally:
        client.close()


def test_a_replica_is_refused_by_the_first_use_too(implementation: impl.Implementation, replica: str) -> None:
    async def use() -> None:
        client = AsyncClient(replica)
        try:
            await client.lock("x").acquire()
        finally:
            await client.close()

    with pytest.raises(ConfigurationError, match="not a master"):
        asyncio.run(use())


@pytest.mark.parametrize(
    ("given", "address", "db"),
    [
        ("redis://host", "host:6379", 0),
        ("valkey://host:1234/5", "host:1234", 5),
        ("rediss://host", "host:6379", 0),
        ("VALKEYS://u:p@host:1", "host:1", 0),
        ("redis://[::1]:7", "[::1]:7", 0),
        ("unix:///run/a.sock?db=3", "/run/a.sock", 3),
        (b"redis://host", "host:6379", 0),
    ],
)
def test_a_url_contains_address_and_database(given: str | bytes, address: str, db: int) -> None:
    [master] = masters_of(given)
    assert (master.address, master.db) == (address, db)


@pytest.mark.parametrize(
    ("url", "credentials"),
    [
        ("redis://host", ()),
        ("redis://:pw@host", ("pw",)),
        ("redis://user:pw@host", ("user", "pw")),
        ("redis://user:p%40w@host", ("user", "p@w")),
        ("redis://host?username=user&password=pw", ("user", "pw")),
    ],
)
def test_a_url_contains_the_credentials(url: str, credentials: tuple[str, ...]) -> None:
    [master] = masters_of(url)
    assert master.credentials() == credentials


def test_a_credential_provider_is_asked_again_each_time() -> None:
    class Provider(redis.CredentialProvider):
        count = 0

        def get_credentials(self) -> tuple[str, str]:
            self.count += 1
            return "user", f"pw{self.count}"

    with redis.Redis(credential_provider=Provider()) as client:
        [master] = masters_of(client)
    assert [master.credentials(), master.credentials()] == [("user", "pw1"), ("user", "pw2")]


def test_a_redis_py_client_of_either_face_gives_its_settings() -> None:
    sync = redis.Redis(host="a", port=1, db=2, username="u", password="p")
    other = redis.asyncio.Redis(host="b", port=3, db=4)
    masters = masters_of([sync, other, redis.Redis(unix_socket_path="/run/a.sock")])
    assert [(master.address, master.db) for master in masters] == [("a:1", 2), ("b:3", 4), ("/run/a.sock", 0)]
    assert masters[0].credentials() == ("u", "p")


def test_a_sentinel_client_is_known_by_its_service() -> None:
    sentinel = redis.sentinel.Sentinel([("127.0.0.1", 1)])
    [master] = masters_of(sentinel.master_for("mymaster"))
    assert master.address == "sentinel:mymaster"


def test_no_repr_shows_a_password() -> None:
    url = f"redis://user:{PASSWORD}@host/1"
    client = Client(url, ttl=5)
    for thing in (client, client.lock("x"), *masters_of(url)):
        assert "host" in repr(thing) or "x" in repr(thing)
        assert PASSWORD not in repr(thing)
        assert PASSWORD not in str(thing)


# --- the calls of redis-py that we rely on -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["Connection", "UnixDomainSocketConnection", "SSLConnection"])
def test_redis_py_has_the_one_call_that_opens_a_socket(kind: str) -> None:
    assert callable(getattr(redis.connection, kind)._connect)


def test_redis_py_opens_a_socket_and_sends_nothing_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with master_of("redis://:s3cr3t@{}:{}/3".format(*listener.getsockname())).connect(PATIENCE):
            far, _ = listener.accept()
            with far:
                far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    far.recv(1)


# --- ttl ---------------------------------------------------------------------------------------------

BAD_TTLS = [0, 0.0, -0.0, -1, -0.001, 0.0004, math.nan, math.inf, -math.inf, 1e-300, 1e300, HUGE, -HUGE]
NO_TTLS: list[Any] = ["10", b"10", True, False, [10], {}, decimal.Decimal(10)]


@faces
@pytest.mark.parametrize("ttl", BAD_TTLS)
def test_a_clients_ttl_that_cannot_work_is_refused(face: Face, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl: "):
        face(URL, ttl=ttl)


@faces
@pytest.mark.parametrize("ttl", BAD_TTLS)
def test_a_locks_ttl_that_cannot_work_is_refused(face: Face, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl: "):
        face(URL).lock("x", ttl=ttl)


@faces
@pytest.mark.parametrize("ttl", NO_TTLS)
def test_a_ttl_that_is_no_number_is_refused(face: Face, ttl: Any) -> None:
    with pytest.raises(TypeError, match=r"^ttl: "):
        face(URL, ttl=ttl)
    with pytest.raises(TypeError, match=r"^ttl: "):
        face(URL).lock("x", ttl=ttl)


def test_a_client_needs_a_ttl() -> None:
    with pytest.raises(TypeError, match=r"^ttl: "):
        Client(URL, ttl=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [0.001, 0.002])
def test_a_ttl_not_above_the_drift_allowance_is_refused(ttl: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl: .*drift"):
        Client(URL).lock("x", ttl=ttl)


@pytest.mark.parametrize("ttl", [0.01, 1, 3.5, 86_400, 100 * 365 * 86_400])
def test_a_ttl_from_some_milliseconds_to_a_hundred_years_is_accepted(ttl: float) -> None:
    assert Client(URL, guard=None).lock("x", ttl=ttl).ttl == ttl


@pytest.mark.parametrize("longest", [60.0, 12.0])
def test_a_ttl_above_what_the_guard_allows_is_refused(longest: float) -> None:
    client = Client(URL, guard=Guard(max_ttl=longest))
    assert client.lock("x", ttl=longest).ttl == longest
    for refused in (
        lambda: client.lock("x", ttl=longest + 0.001),
        lambda: client.semaphore("x", 2, ttl=longest + 0.001),
        lambda: Client(URL, ttl=longest + 0.001, guard=Guard(max_ttl=longest)),
    ):
        with pytest.raises(ConfigurationError, match=f"^ttl: .* above the {longest:g} s of the guard"):
            refused()


def test_only_a_guard_or_none_is_accepted_as_guard() -> None:
    with pytest.raises(TypeError, match=r"^guard: a redlatch\.Guard or None"):
        Client(URL, guard=60)  # type: ignore[arg-type]


def test_a_ttl_is_rounded_to_milliseconds() -> None:
    assert config.ttl_ms_of(1.2346, 0.01) == 1235


@given(ttl=st.floats() | st.integers())
def test_a_ttl_is_either_refused_or_leaves_validity(ttl: float) -> None:
    try:
        milliseconds = config.ttl_ms_of(ttl, 0.01)
    except ConfigurationError:
        return
    assert milliseconds >= 1
    assert milliseconds * 0.99 - 2 > 0
    assert abs(milliseconds - ttl * 1000) <= 0.51


# --- names and prefixes ------------------------------------------------------------------------------


@faces
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("a\0b", "NUL"),
        (b"\0", "NUL"),
        ("x" * 513, "513 bytes"),
        (b"x" * 513, "513 bytes"),
        ("ü" * 257, "514 bytes"),
        ("\ud800", "UTF-8"),
    ],
)
def test_a_name_that_cannot_be_a_key_is_refused_and_carried_by_the_error(face: Face, name: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^name: .*{why}") as caught:
        face(URL).lock(name)
    assert caught.value.name == name


@faces
@pytest.mark.parametrize("name", [None, 5, 1.5, True, ["a"], bytearray(b"a"), object()])
def test_a_name_that_is_neither_text_nor_bytes_is_refused(face: Face, name: Any) -> None:
    with pytest.raises(TypeError, match=r"^name: str or bytes is needed"):
        face(URL).lock(name)


def test_the_longest_name_has_512_bytes_with_its_prefix() -> None:
    client = Client(URL, prefix="p:")
    assert client.lock("x" * 510).name == "x" * 510
    with pytest.raises(ConfigurationError, match=r"^name: .*513 bytes with the prefix"):
        client.lock("x" * 511)


@pytest.mark.parametrize("name", ["a\r\nb", "x" * 512, b"\xff\xfe", "日本", " "])
def test_any_other_name_is_accepted(implementation: impl.Implementation, name: str | bytes) -> None:
    raw = name.encode() if isinstance(name, str) else name
    key_of = implementation.module("votes.key").key_of
    assert key_of(b"", name) == raw
    assert key_of(b"p:", raw[:100]) == b"p:" + raw[:100]


@faces
@pytest.mark.parametrize("prefix", [None, 5, True, bytearray(b"a"), ["a"]])
def test_a_prefix_that_is_neither_text_nor_bytes_is_refused(face: Face, prefix: Any) -> None:
    with pytest.raises(TypeError, match=r"^prefix: str or bytes is needed"):
        face(URL, prefix=prefix)


@faces
@pytest.mark.parametrize("prefix", ["a\0", b"\0", "x" * 512, b"x" * 600, "\ud800"])
def test_a_prefix_that_no_name_could_follow_is_refused(face: Face, prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^prefix: "):
        face(URL, prefix=prefix)


# --- timeouts and other options ----------------------------------------------------------------------


@faces
@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf, -HUGE])
def test_a_timeout_that_cannot_work_is_refused(face: Face, timeout: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^timeout: "):
        face(URL).lock("x", timeout=timeout)


@faces
@pytest.mark.parametrize("timeout", ["1", True, b"1", [1]])
def test_a_timeout_that_is_no_number_is_refused(face: Face, timeout: Any) -> None:
    with pytest.raises(TypeError, match=r"^timeout: "):
        face(URL).lock("x", timeout=timeout)


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, HUGE])
def test_a_timeout_without_end_waits_for_ever(timeout: float | None) -> None:
    assert config.timeout_of(timeout, True) is None


@pytest.mark.parametrize(
    ("timeout", "refusal"), [(-1, ConfigurationError), (math.nan, ConfigurationError), ("1", TypeError)]
)
def test_a_timeout_of_one_acquire_is_checked_and_leaves_the_lock_free(timeout: Any, refusal: type) -> None:
    lock = Client(URL).lock("x")
    for _ in range(2):
        with pytest.raises(refusal, match=r"^timeout: "):
            lock.acquire(timeout=timeout)


def test_a_call_that_does_not_block_takes_no_timeout() -> None:
    with pytest.raises(ConfigurationError, match=r"^timeout: .*blocking=False"):
        Client(URL).lock("x").acquire(blocking=False, timeout=1)


@faces
@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e300, HUGE, 1e-10])
def test_an_attempt_timeout_that_cannot_work_is_refused(face: Face, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^attempt_timeout: "):
        face(URL, attempt_timeout=seconds)


def test_a_gil_patience_that_cannot_work_is_refused() -> None:
    for seconds in (-1, float("nan")):
        with pytest.raises(ConfigurationError, match=r"^gil_patience: "):
            Client(URL, gil_patience=seconds)
    with pytest.raises(TypeError, match=r"^gil_patience: "):
        Client(URL, gil_patience="1")  # type: ignore[arg-type]


@faces
@pytest.mark.parametrize("seconds", ["1", True, [1]])
def test_an_attempt_timeout_that_is_no_number_is_refused(face: Face, seconds: Any) -> None:
    with pytest.raises(TypeError, match=r"^attempt_timeout: "):
        face(URL, attempt_timeout=seconds)


@faces
@pytest.mark.parametrize("factor", [-0.01, 1, 1.5, math.nan, math.inf, "0.01", None, True, False])
def test_a_drift_factor_that_cannot_work_is_refused(face: Face, factor: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError), match=r"^drift_factor: "):
        face(URL, drift_factor=factor)


@faces
@pytest.mark.parametrize("handoff", [3, 0.1, "often", (1, 2), {"tenure": 1}, Handoff, True])
def test_a_handoff_of_another_kind_is_refused(face: Face, handoff: Any) -> None:
    with pytest.raises(TypeError, match=r"^handoff: a redlatch.Handoff is needed"):
        face(URL, handoff=handoff)


@pytest.mark.parametrize("tenure", [-1, -0.001, math.nan, math.inf, -math.inf])
def test_a_tenure_that_cannot_work_is_refused(tenure: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^handoff: .*tenure="):
        Handoff(tenure=tenure)


@pytest.mark.parametrize("tenure", [None, "1", True, False, b"1", [1]])
def test_a_tenure_that_is_no_number_is_refused(tenure: Any) -> None:
    with pytest.raises(TypeError, match=r"^handoff: tenure .*not (NoneType|str|bool|bytes|list)"):
        Handoff(tenure=tenure)


@pytest.mark.parametrize("count", [-1, -HUGE, HUGE])
def test_a_handoff_count_that_cannot_work_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=r"^handoff: .*count="):
        Handoff(count=count)


@pytest.mark.parametrize("count", [None, "1", True, False, 1.0, math.nan])
def test_a_handoff_count_that_is_no_whole_number_is_refused(count: Any) -> None:
    with pytest.raises(TypeError, match=r"^handoff: count .*not (NoneType|str|bool|float)"):
        Handoff(count=count)


@faces
@pytest.mark.parametrize("handoff", [None, Handoff(), Handoff(0, 0), Handoff(tenure=1e300), Handoff(tenure=HUGE)])
def test_any_other_handoff_is_accepted(face: Face, handoff: Handoff | None) -> None:
    face(URL, handoff=handoff)


@faces
@pytest.mark.parametrize("most", [-1, -HUGE, HUGE])
def test_a_number_of_waiters_that_cannot_work_is_refused(face: Face, most: int) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_waiters: "):
        face(URL, max_waiters=most)


@faces
@pytest.mark.parametrize("most", ["1", True, False, 1.0, math.nan, math.inf, [1]])
def test_a_number_of_waiters_that_is_no_whole_number_is_refused(face: Face, most: Any) -> None:
    with pytest.raises(TypeError, match=r"^max_waiters: .*not (str|bool|float|list)"):
        face(URL, max_waiters=most)


@faces
@pytest.mark.parametrize("late", [None, 0, 1, "yes", math.nan])
def test_a_refuse_late_that_is_neither_true_nor_false_is_refused(face: Face, late: Any) -> None:
    with pytest.raises(TypeError, match=r"^refuse_late: True or False is needed, not (NoneType|int|str|float)"):
        face(URL, refuse_late=late)


@faces
@pytest.mark.parametrize("wakeups", [None, True, 0, "", "AUTO", "push", b"auto", ["auto"]])
def test_any_other_value_of_wakeups_is_refused(face: Face, wakeups: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^wakeups: 'auto' or 'poll' is needed"):
        face(URL, wakeups=wakeups)


@faces
@pytest.mark.parametrize("retry", [3, 0.1, "often", (1, 2), {"first": 1}, Retry])
def test_a_retry_of_another_kind_is_refused(face: Face, retry: Any) -> None:
    with pytest.raises(TypeError, match=r"^retry: a redlatch.Retry is needed"):
        face(URL, retry=retry)


# --- calls in the wrong order, on real masters -------------------------------------------------------


def test_releasing_without_holding_is_not_owned(client: Client, name: str) -> None:
    with pytest.raises(NotOwned, match=name) as caught:
        client.lock(name).release()
    assert caught.value.name == name


def test_extending_without_holding_is_not_owned(client: Client, name: str) -> None:
    with pytest.raises(NotOwned, match=name):
        client.lock(name).extend()


def test_releasing_twice_is_not_owned(client: Client, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    lock.release()
    with pytest.raises(NotOwned, match=name):
        lock.release()


def test_acquiring_twice_is_already_held_and_stays_held(client: Client, name: str) -> None:
    with client.lock(name) as lock:
        with pytest.raises(AlreadyHeld, match=name):
            lock.acquire()
        lock.check()


def test_extending_a_lock_that_an_operator_deleted_raises_lock_lost(client: Client, urls: list[str], name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            master.delete(name)
    with pytest.raises(LockLost, match=name) as caught:
        lock.extend()
    assert caught.value.name == name
    with pytest.raises(LockLost):
        lock.check()


def test_a_bad_ttl_of_an_extension_is_refused_and_the_lock_stays_held(client: Client, name: str) -> None:
    with client.lock(name) as lock:
        with pytest.raises(ConfigurationError, match=r"^ttl: "):
            lock.extend(0)
        with pytest.raises(TypeError, match=r"^ttl: "):
            lock.extend("1")  # type: ignore[arg-type]
        assert lock.owned()


def test_checking_a_lock_that_is_not_held_raises_not_owned(client: Client, name: str) -> None:
    with pytest.raises(NotOwned, match=name):
        client.lock(name).check()


def test_a_with_on_a_held_lock_that_must_not_wait_is_busy(client: Client, name: str) -> None:
    with client.lock(name), pytest.raises(LockBusy, match=name), client.lock(name, timeout=0):
        pytest.fail("the body ran without the lock")


def test_a_with_on_a_held_lock_times_out_as_a_timeout_error(client: Client, name: str) -> None:
    with client.lock(name), pytest.raises(TimeoutError, match=name) as caught, client.lock(name, timeout=0.01):
        pytest.fail("the body ran without the lock")
    assert isinstance(caught.value, LockTimeout)
    assert caught.value.name == name


CALLS: dict[str, Callable[[Any], object]] = {
    "acquire": lambda lock: lock.acquire(),
    "locked": lambda lock: lock.locked(),
    "with": lambda lock: lock.__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("used", [True, False])
def test_a_closed_client_refuses_every_call(
    implementation: impl.Implementation, url: str, name: str, call: str, used: bool
) -> None:
    client = Client(url)
    if used:
        client.connect()
    lock = client.lock(name)
    client.close()
    for _ in range(2):
        with pytest.raises(ClientClosed):
            CALLS[call](lock)


def test_a_closed_client_refuses_to_release_and_to_extend_a_held_lock(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    client = Client(url, attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=1.0)
    assert lock.acquire()
    client.close()
    for call in (lock.release, lock.extend, lock.owned):
        with pytest.raises(ClientClosed):
            call()


def test_closing_twice_is_harmless(implementation: impl.Implementation, url: str) -> None:
    client = Client(url)
    client.connect()
    client.close()
    client.close()


def test_a_closed_async_client_refuses_every_call(implementation: impl.Implementation, url: str, name: str) -> None:
    async def use() -> None:
        client = AsyncClient(url)
        lock = client.lock(name)
        await client.connect()
        await client.close()
        await client.close()
        for call in (lock.acquire, lock.locked, client.connect):
            with pytest.raises(ClientClosed):
                await call()

    asyncio.run(use())


def test_a_failed_release_does_not_replace_the_error_of_the_body(client: Client, urls: list[str], name: str) -> None:
    with pytest.raises(KeyError) as caught, client.lock(name):
        for url in urls:
            with redis.Redis.from_url(url, retry=None) as master:
                master.delete(name)
        raise KeyError("the body's own")
    assert any("LockLost" in note for note in caught.value.__notes__)


def test_errors_and_reprs_of_a_lock_do_not_show_its_token(client: Client, urls: list[str], name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    assert lock.token is not None
    token = lock.token.decode()
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            master.delete(name)
    with pytest.raises(LockError) as caught:
        lock.extend()
    assert token not in repr(lock) + repr(caught.value) + str(caught.value) + repr(vars(caught.value))
