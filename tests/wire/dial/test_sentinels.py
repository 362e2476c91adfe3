"""Asking sentinels: which answers count, and what the error says. tests/test_sentinel.py has real sentinels."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.sentinel import MasterNotFoundError
from support.dialling import master_of
from support.faces import in_thread
from support.scripted import scripted

from redlatch.masters.master import Group
from redlatch.wire.dial import sentinels
from redlatch.wire.dial.sentinels import address_in, find_master

PATIENCE = 10.0
PASSWORD = "s3cr3tpw"
OLD, NEW = "10.0.0.1", "10.0.0.2"

Answer = Callable[[list[bytes]], bytes]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no scripted answer come too late."""
    monkeypatch.setattr(sentinels, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(sentinels, "GRACE", PATIENCE)
    monkeypatch.setattr(sentinels, "DISPUTE", PATIENCE)


def array(*texts: str) -> bytes:
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text.encode()) for text in texts)


def naming(host: str, epoch: int = 1, others: int = 2) -> Answer:
    """Answer as a sentinel that names this host."""

    def answer(command: list[bytes]) -> bytes:
        if command[:2] == [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME"]:
            return array(host, "6379")
        state = {"name": "g", "ip": "former", "config-epoch": str(epoch), "num-other-sentinels": str(others)}
        return array(*[word for pair in state.items() for word in pair])

    return answer


def saying(reply: bytes) -> Answer:
    return lambda command: reply


@contextlib.contextmanager
def group_of(*answers: Answer, query: str = "") -> Iterator[Group]:
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(scripted(answer)).removeprefix("redis://") for answer in answers]
        group = master_of(f"redis+sentinel://{','.join(hosts)}/g{query}").group
        assert group is not None
        yield group


def refusal(*answers: Answer, query: str = "") -> str:
    with group_of(*answers, query=query) as group, pytest.raises(MasterNotFoundError) as caught:
        find_master(group)
    assert group.unanswered == set()
    # The ports differ from run to run.
    return re.sub(r"127\.0\.0\.1:\d+", "sentinel", str(caught.value))


NOBODY = saying(b"*-1\r\n")
BROKEN = saying(b"")


@pytest.mark.parametrize(
    "answers",
    [
        [naming(NEW)],
        [naming(NEW)] * 3,
        [naming(NEW), naming(NEW), naming(OLD)],
        [naming(NEW, 5), naming(NEW, 5), naming(OLD, 4)],
        # One of the majority has not heard of the newest configuration, but names the same address.
        [naming(NEW, 5), naming(NEW, 4), naming(OLD, 4)],
        [naming(NEW), naming(NEW), BROKEN],
        [naming(NEW), naming(NEW), NOBODY],
        # A wrong sentinel with a huge epoch would otherwise keep all clients out.
        [naming(NEW, 5), naming(NEW, 5), naming(OLD, 999_999_999)],
        # A fail-over has ended, and the majority does not know it yet. The handshake finds a replica, or nobody.
        [naming(NEW, 4), naming(NEW, 4), naming("10.0.0.3", 5)],
    ],
)
def test_an_address_that_a_majority_names_is_found(answers: list[Answer]) -> None:
    with group_of(*answers) as group:
        assert find_master(group).address == (NEW, 6379)


@pytest.mark.parametrize(
    "answers",
    [
        [BROKEN],
        [NOBODY],
        [naming(NEW), naming(OLD)],
        [naming(NEW), BROKEN, BROKEN],
        [naming(NEW), NOBODY, NOBODY],
        [naming(NEW), naming(OLD), naming("10.0.0.3")],
        [naming(NEW), naming(NEW), naming(OLD), naming(OLD)],
        # A larger epoch does not replace a majority.
        [naming(OLD, 4), naming(NEW, 5), BROKEN],
    ],
)
def test_an_address_without_a_majority_is_refused(answers: list[Answer]) -> None:
    assert "the sentinels of g do not agree on a master" in refusal(*answers)


def test_the_error_has_the_answer_of_each_sentinel() -> None:
    text = refusal(naming(OLD, 4), naming(NEW, 5), NOBODY)
    assert text.endswith(
        "sentinel says 10.0.0.1:6379 (epoch 4); sentinel says 10.0.0.2:6379 (epoch 5); "
        "sentinel failed: it does not know the group"
    )


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b"-ERR unknown command 'SENTINEL'\r\n", "ERR unknown command"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH"),
        (b"+OK\r\n", "it is no sentinel"),
        (b"*0\r\n", "it is no sentinel"),
        (b"*99999999\r\n", "the server announced more than 4096 elements"),
        (b"hello\r\n", "the answer is no RESP"),
        (array("host", "port"), "it does not say its num-other-sentinels"),
        (b"", "the server closed the connection"),
    ],
)
def test_a_wrong_answer_is_a_cause(reply: bytes, problem: str) -> None:
    assert f"sentinel failed: {problem}" in refusal(saying(reply))


@pytest.mark.parametrize("epoch", ["", "-1", "x", "9" * 30])
def test_an_epoch_is_a_number(epoch: str) -> None:
    state = array("config-epoch", epoch, "num-other-sentinels", "2")
    assert "config-epoch" in refusal(
        lambda command: array(NEW, "6379") if b"GET-MASTER-ADDR-BY-NAME" in command else state
    )


@pytest.mark.parametrize(
    ("host", "port"),
    [
        (b"host name", b"1"),
        (b"", b"1"),
        (b"x" * 256, b"1"),
        (b"h\x00", b"1"),
        (b"h", b"0"),
        (b"h", b"65536"),
        (b"h", b""),
    ],
)
def test_a_malformed_address_is_refused(host: bytes, port: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        address_in(Group("g", []), host, port)


@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1%eth0", "valkey-0.valkey"])
def test_an_address_has_a_host_and_a_port(host: str) -> None:
    assert address_in(Group("g", []), host.encode(), b"6379") == (host, 6379)


def test_a_sentinel_that_knows_too_few_others_is_not_believed() -> None:
    with group_of(naming(NEW, others=1)) as group:
        group.least_others = 1
        assert find_master(group).address == (NEW, 6379)
        group.least_others = 2
        with pytest.raises(MasterNotFoundError, match="knows fewer than 2 other sentinels"):
            find_master(group)


def test_the_sentinels_get_their_own_password() -> None:
    given: list[list[bytes]] = []

    def answer(command: list[bytes]) -> bytes:
        given.append(command)
        return b"+OK\r\n" if command[0] == b"AUTH" else naming(NEW)(command)

    with group_of(answer, query=f"?sentinel_username=you&sentinel_password={PASSWORD}") as group:
        find_master(group)
    assert given[0] == [b"AUTH", b"you", PASSWORD.encode()]


def test_the_error_of_a_login_repeats_no_password() -> None:
    said = saying(f"-ERR unknown command 'AUTH', with args beginning with: '{PASSWORD}'\r\n".encode())
    assert PASSWORD not in refusal(said, query=f"?sentinel_password={PASSWORD}")


def test_a_sentinel_that_is_silent_is_not_waited_for_and_asked_by_one_thread_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, over = threading.Semaphore(0), threading.Event()

    def answer(command: list[bytes]) -> bytes:
        silent.release()
        over.wait(PATIENCE)
        return b""

    monkeypatch.setattr(sentinels, "GRACE", 0.0)
    with group_of(naming(NEW), naming(NEW), answer) as group:
        for _ in range(3):
            assert find_master(group).address == (NEW, 6379)
        assert silent.acquire(timeout=PATIENCE)
        assert group.unanswered == {2}
        assert not silent.acquire(blocking=False)
        monkeypatch.setattr(sentinels, "TIMEOUT", 0.0)
        with pytest.raises(MasterNotFoundError, match="gave no answer in time"):
            find_master(group)
        over.set()


def test_a_silent_sentinel_is_not_waited_for_when_the_others_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    over, waited = threading.Event(), []

    def answer(command: list[bytes]) -> bytes:
        waited.append(over.wait(PATIENCE))
        return b""

    monkeypatch.setattr(sentinels, "TIMEOUT", 2 * PATIENCE)
    monkeypatch.setattr(sentinels, "DISPUTE", 0.0)
    with group_of(naming(NEW), naming(OLD), answer) as group:
        with pytest.raises(MasterNotFoundError, match="do not agree"):
            find_master(group)
        assert not waited
        over.set()


def test_two_that_ask_at_once_both_get_answers() -> None:
    asked, over = threading.Event(), threading.Event()

    def answer(command: list[bytes]) -> bytes:
        if not asked.is_set():
            asked.set()
            over.wait(PATIENCE)
        return naming(NEW)(command)

    with group_of(answer) as group:
        first = in_thread(find_master, group)
        assert asked.wait(PATIENCE)
        second = in_thread(find_master, group, set[int]())
        over.set()
        assert [each.result(PATIENCE).address for each in (first, second)] == [(NEW, 6379)] * 2


def test_a_credential_provider_that_exits_is_a_cause() -> None:
    class Provider:
        def get_credentials(self) -> Any:
            raise SystemExit

    with group_of(naming(NEW)) as group:
        group.sentinels[0]._options["credential_provider"] = Provider()
        with pytest.raises(MasterNotFoundError, match="ended by SystemExit"):
            find_master(group)


def test_a_later_question_has_a_larger_number() -> None:
    with group_of(naming(NEW)) as group:
        first, second = find_master(group), find_master(group)
    assert first.number < second.number


def test_the_number_is_that_of_the_beginning_of_a_question() -> None:
    later: list[int] = []

    def answer(command: list[bytes]) -> bytes:
        later.append(group.number_question())
        return naming(NEW)(command)

    with group_of(answer) as group:
        assert find_master(group).number < min(later)
