"""Ask the sentinels of a group where its master is.

All of them are asked at once. A majority of those listed must name the same address. A sentinel that is cut off from
the others names a former master until it learns of the switch; alone it is no majority.

Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

import re
from collections import Counter
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from redis.sentinel import MasterNotFoundError

from ...masters.master import Address, Found, Group
from ...masters.server import Server, address_of
from ...votes.commands import pack
from ...votes.redaction import shown
from ..helper_threads import start_thread
from .conversation import Conversation, seconds

# Seconds for all answers together. With TLS an answer takes four round trips, and the line may be slow.
TIMEOUT = 1.0

# Seconds to wait for the other sentinels after a majority has answered and does not agree, as during a fail-over.
DISPUTE = 0.3

# Seconds to wait for the other sentinels after a majority has agreed, since a sentinel whose question has not ended is
# not asked again.
GRACE = 0.05

# The longest part of a sentinel's error that the error of a client repeats.
_LONGEST = 100

_HOST = re.compile(r"[\w.:%-]{1,255}", re.ASCII)


class SentinelAnswer(NamedTuple):
    """The address of a master. The epoch of the configuration, which each fail-over raises, is for messages only."""

    address: Address
    epoch: int


Outcome = SentinelAnswer | Exception


def find_master(group: Group, unanswered: set[int] | None = None) -> Found:
    """Return where the sentinels say that the master of a group is.

    Args:
        unanswered: the caller's own set of sentinels whose last question has not ended; None is the set of those who
            dial.

    Raises:
        redis.sentinel.MasterNotFoundError: they name none by a majority.
    """
    number = group.number_question()
    answers = _ask_all(group, group.unanswered if unanswered is None else unanswered)
    address = _agreed(group, answers)
    if address is None:
        each = [
            f"{sentinel.address} {_described(answers.get(index))}" for index, sentinel in enumerate(group.sentinels)
        ]
        raise MasterNotFoundError(f"the sentinels of {shown(group.name)} do not agree on a master: {'; '.join(each)}")
    return Found(address, number)


def address_in(group: Group, host: Any, port: Any) -> Address:
    """Return the address that a sentinel named, or raise ValueError."""
    if isinstance(host, bytes) and isinstance(port, bytes) and port.isdigit() and len(port) <= 5:
        name = host.decode(errors="replace")
        if _HOST.fullmatch(name) and 0 < int(port) < 65536:
            return group.reached(name, int(port))
    raise ValueError("the sentinel names a malformed address")


def login_to(sentinel: Server) -> list[bytes]:
    credentials = sentinel.credentials()
    return [pack(b"AUTH", *credentials)] if credentials else []


def _ask_all(group: Group, unanswered: set[int]) -> dict[int, Outcome]:
    """Ask all sentinels at once; return what came in time."""
    came: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
    answers: dict[int, Outcome] = {}
    for index in range(len(group.sentinels)):
        # A sentinel may take longer than TIMEOUT, as in a look-up of its name. One thread for it is enough.
        if index not in unanswered:
            unanswered.add(index)
            try:
                start_thread("ask", _ask, group, index, unanswered, came)
            except RuntimeError as error:
                answers[index] = error
                unanswered.discard(index)
    until = seconds() + TIMEOUT
    agreed = False
    while len(answers) < len(group.sentinels):
        try:
            index, answer = came.get(timeout=max(0.0, until - seconds()))
        except Empty:
            break
        answers[index] = answer
        if not agreed and _agreed(group, answers) is not None:
            agreed = True
            until = min(until, seconds() + GRACE)
        elif len(answers) >= group.majority:
            until = min(until, seconds() + DISPUTE)
    return answers


def _agreed(group: Group, answers: dict[int, Outcome]) -> Address | None:
    """Return the address that a majority of the listed sentinels names.

    The config-epoch of the answers does not count. Two majorities share a sentinel, so only one address can have one.
    If a larger epoch were a veto, one wrong sentinel could keep all clients out for good. The veto would help only at
    the end of a fail-over, while the majority still names the former master. That master is then dead, or a replica,
    which the handshake finds. Or it is cut off from the sentinels, and connected clients use it, too: the remedy is
    `min-replicas-to-write`. In a list of several masters, the guard keeps the promoted replica out meanwhile.
    """
    named = Counter([answer.address for answer in answers.values() if isinstance(answer, SentinelAnswer)])
    return next((address for address, count in named.items() if count >= group.majority), None)


def _described(answer: Outcome | None) -> str:
    if answer is None:
        return "gave no answer in time"
    if isinstance(answer, SentinelAnswer):
        return f"says {address_of(*answer.address)} (epoch {answer.epoch})"
    return f"failed: {shown(answer, _LONGEST) or type(answer).__name__}"


def _ask(group: Group, index: int, unanswered: set[int], came: SimpleQueue[tuple[int, Outcome]]) -> None:
    try:
        came.put((index, _answer_of(group, group.sentinels[index])))
    except Exception as error:
        came.put((index, error))
    except BaseException as error:
        # A user's credential provider may raise SystemExit.
        came.put((index, RuntimeError(f"the question was ended by {type(error).__name__}")))
    finally:
        unanswered.discard(index)


def _answer_of(group: Group, sentinel: Server) -> SentinelAnswer:
    """Ask for the master's address and for the epoch of the configuration, in one round trip.

    During a fail-over, the reply to SENTINEL MASTER has the former address until all replicas follow the new master,
    which may take as long as the slowest of them. GET-MASTER-ADDR-BY-NAME has the new one as soon as it is a master.
    """
    login = login_to(sentinel)
    questions = [pack(b"SENTINEL", word, group.name) for word in (b"GET-MASTER-ADDR-BY-NAME", b"MASTER")]
    sock = sentinel.connect(TIMEOUT)
    try:
        replies = Conversation(sock, TIMEOUT).ask([*login, *questions], len(login))
    finally:
        sock.close()
    for reply in replies[: len(login) + 1]:
        if isinstance(reply, Exception):
            raise reply
    where, state = replies[len(login) :]
    if where is None or isinstance(state, Exception):
        raise ValueError("it does not know the group" if where is None else str(state))
    if not (isinstance(where, list) and len(where) == 2 and isinstance(state, list)):
        raise ValueError("it is no sentinel")
    if _number(state, b"num-other-sentinels") < group.least_others:
        raise ValueError(f"it knows fewer than {group.least_others} other sentinels")
    return SentinelAnswer(address_in(group, *where), _number(state, b"config-epoch"))


def _number(state: list[Any], field: bytes) -> int:
    """Return a number from the reply to SENTINEL MASTER, which has the fields and their values in turn."""
    value = dict(zip(state[::2], state[1::2], strict=False)).get(field)
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > 19:
        raise ValueError(f"it does not say its {field.decode()}")
    return int(value)
