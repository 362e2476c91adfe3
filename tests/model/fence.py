"""A model of the fences: masters and the messages of clients, in as few states as the order of events allows.

N masters hold a key L and a counter F each. An attempt of a client proposes a block of fences `start..end`. A master
that gives its key accepts if start > F (then F = end) or rejects with F. A quorum that accepted grants the block.
Otherwise, if a quorum gave its key, round 2 asks again with a start above all answers. A master then accepts if its key
still has the token and F < start (then F = end). `attempts.py` has the clients' side and the invariants, `explore.py`
the search.

The model has no time: messages are late or lost in any way, a key expires at any moment, a client stops at any step,
and `start` may have any rank among the numbers at hand. Some events have no step of their own because another step
stands for them:
- A lost message is a message that waits for ever. A connection keeps its order: a message that is overtaken was lost.
- Only the client sees an answer, so the answer arrives when the client counts it, or never.
- A key expires when the next key takes its place. An earlier expiry that no command notices changes nothing.
- A "no" tells a client no more than silence: the message waits, and may be lost.
- A release is an expiry. A failed attempt is followed by the next one, or never ends; its messages may still arrive.
- All masters are alike, and so are all clients: states that differ only by names are one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# An answer; a rejection is the counter, from 0; None is no answer.
ACCEPT = -1
# The use of a message: OLD is of an attempt given up, the answer to WANTED counts, STALE is of round 1 during round 2.
OLD, WANTED, STALE = range(3)
NOBODY = -1

# The round, the start, and OLD, WANTED or STALE.
Message = tuple[int, int, int]


@dataclass(frozen=True)
class Scheme:
    """The scheme to check. The fields of the last group are mistakes; the search must find each of them.

    Args:
        attempts: how many attempts each client makes.
        confirm: the masters that count in round 2: "all", or those "answered" whose round 1 is in the maximum.
        block: the number of fences in a grant; with more than one, holders pass fences on.
        pass_on: when a holder may pass its lease on. "anyhow": at any time, and its fence is compared only with later
            grants. With the other values it is also compared with all earlier grants. "late": at any time. "held":
            while its key stands on a quorum that accepted. "keyed": while its key stands on any quorum.
        losses: how many counters are lost; `lost_as` is "seed" (at any time, to at least the highest counter) or "zero"
            (while all clients are idle).
        spare: the highest proposal is the highest number at hand plus `spare`; the lowest is the lowest counter.
        gap: empty ranges between numbers at hand are narrowed to this; 0 leaves them as they are.
    """

    masters: int = 3
    attempts: tuple[int, ...] = (1, 1)
    confirm: str = "all"
    block: int = 1
    pass_on: str = "anyhow"
    losses: int = 0
    lost_as: str = "seed"
    spare: int = 2
    gap: int = 2

    # There is one round: each master answers INCR F, and the fence is the maximum of a quorum.
    counts_up: bool = False
    # Round 1 accepts start >= F.
    accepts_equal: bool = False
    # F = start, although it should be end.
    stores_start: bool = False
    # Round 2 compares the token of the key.
    asks_key: bool = True
    # Round 2 compares F.
    asks_counter: bool = True
    # A master that accepted in round 1 counts in round 2 and is not asked again.
    keeps_votes: bool = False
    # The order of keys is taken to bind a master that only rejected, too.
    trusts_every_key: bool = False

    @property
    def clients(self) -> int:
        return len(self.attempts)


class Wire(NamedTuple):
    """One client's connection to one master, and the bounds on the client's fence if this master counts for it."""

    queue: tuple[Message, ...] = ()
    answer: int | None = None
    # A fence that was granted under an earlier key of this master.
    above: int | None = None
    # A fence that was granted under a later key of this master.
    below: int | None = None


class Master(NamedTuple):
    """One master: F, the clients whose keys stood here in their order, and the connections.

    The last of `keys` is the current key. It may be NOBODY, or client + number of clients: the key of an attempt given
    up.
    """

    counter: int
    keys: tuple[int, ...]
    wires: tuple[Wire, ...]

    def with_wire(self, who: int, wire: Wire, **changes: Any) -> Master:
        return self._replace(wires=(*self.wires[:who], wire, *self.wires[who + 1 :]), **changes)


def counts(scheme: Scheme, wire: Wire) -> bool:
    """Return whether this master is one of those whose acceptance makes the grant."""
    if scheme.counts_up or scheme.trusts_every_key:
        return wire.answer is not None
    return wire.answer == ACCEPT


def executions(scheme: Scheme, master: Master) -> Iterator[tuple[Master, str]]:
    """Yield the commands that a master may execute next: the master after each one, and the event as text."""
    for who, wire in enumerate(master.wires):
        for at, (turn, start, use) in enumerate(wire.queue):
            step = _set if turn == 1 else _raise
            done = step(scheme, master, who, at)
            if done is not None:
                counter, keys, answer = done
                kept = answer if use == WANTED else wire.answer
                wire_after = wire._replace(queue=wire.queue[at + 1 :], answer=kept)
                after = master.with_wire(who, wire_after, counter=counter, keys=keys)
                yield after, _told(scheme, who, turn, start, use, answer)


def _set(scheme: Scheme, master: Master, who: int, at: int) -> tuple[int, tuple[int, ...], int]:
    """Round 1, with a key that is free or just expired: SET it, compare, answer."""
    _, start, use = master.wires[who].queue[at]
    standing = scheme.clients + who if use == OLD else who
    keys = (*[key for key in master.keys if 0 <= key < scheme.clients], standing)
    counter = master.counter
    if scheme.counts_up:
        return counter + 1, keys, counter + 1
    if start > counter or (scheme.accepts_equal and start == counter):
        return (start if scheme.stores_start else start + scheme.block - 1), keys, ACCEPT
    return counter, keys, counter


def _raise(scheme: Scheme, master: Master, who: int, at: int) -> tuple[int, tuple[int, ...], int] | None:
    """Round 2: compare the token and F, and raise F; return None if the master refuses (`tidy` compares the token)."""
    _, start, _ = master.wires[who].queue[at]
    if at or (scheme.asks_counter and start <= master.counter):
        return None
    return (start if scheme.stores_start else start + scheme.block - 1), master.keys, ACCEPT


def _told(scheme: Scheme, who: int, turn: int, start: int, use: int, answer: int) -> str:
    message = f"gives its key to client {who}" if turn == 1 else f"is asked to confirm by client {who}"
    if scheme.counts_up:
        return f"{message} and counts to {answer}"
    late = " (late: the attempt is given up)" if use == OLD else ""
    return f"{message} and {f'accepts {start}' if answer == ACCEPT else f'rejects {start}: it has {answer}'}{late}"


def proposed(scheme: Scheme, master: Master, who: int, start: int | None) -> Master:
    """Give up a client's attempt, and send round 1 of the next one if it has a start."""
    queue = tuple([(turn, number, OLD) for turn, number, _ in master.wires[who].queue])
    if start is not None:
        queue = (*queue, (1, start, WANTED))
    return master.with_wire(who, Wire(queue), keys=_without(scheme, master.keys, who))


def confirmed(scheme: Scheme, master: Master, who: int, start: int, asked: bool) -> Master:
    """Drop the answer to round 1, and send round 2 to a master that is asked."""
    queue, answer, above, below = master.wires[who]
    if scheme.keeps_votes and answer == ACCEPT:
        asked = False
    else:
        answer = None
    queue = tuple([(turn, number, use if use == OLD else STALE if asked else OLD) for turn, number, use in queue])
    if asked:
        queue = (*queue, (2, start, WANTED))
    return master.with_wire(who, Wire(queue, answer, above if above is not None and above >= start else None, below))


def ranked(scheme: Scheme, master: Master, who: int, fence: int, other: int, start: int) -> Master:
    """Bound another attempt's fence by the order of the two keys, if this master counts for both attempts."""
    wire = master.wires[other]
    if not counts(scheme, master.wires[who]) or who not in master.keys:
        return master
    if other in master.keys and master.keys.index(other) < master.keys.index(who):
        wire = wire._replace(below=fence if wire.below is None else min(fence, wire.below))
    elif fence >= start and (other in master.keys or any(turn == 1 and use != OLD for turn, _, use in wire.queue)):
        wire = wire._replace(above=fence if wire.above is None else max(fence, wire.above))
    return master.with_wire(other, wire)


def lost(_scheme: Scheme, master: Master, counter: int) -> Master:
    """Lose the counter; the master then uses this number."""
    return master._replace(counter=counter)


def swapped(scheme: Scheme, master: Master, order: tuple[int, ...]) -> Master:
    """Rename the clients."""
    n = scheme.clients
    to = {NOBODY: NOBODY}
    for new, old in enumerate(order):
        to |= {old: new, n + old: n + new}
    return Master(master.counter, tuple([to[key] for key in master.keys]), tuple([master.wires[who] for who in order]))


def renumbered(_scheme: Scheme, master: Master, pairs: tuple[tuple[int, int], ...]) -> Master:
    """Replace the numbers at hand by others with the same order and the same neighbours."""
    to: dict[int | None, Any] = {None: None, ACCEPT: ACCEPT, **dict(pairs)}
    wires = [
        Wire(tuple([(turn, to[start], use) for turn, start, use in queue]), *[to[number] for number in rest])
        for queue, *rest in master.wires
    ]
    return Master(to[master.counter], master.keys, tuple(wires))


def numbers(scheme: Scheme, master: Master) -> set[int]:
    """Collect the numbers at hand on this master, in messages to it and in its answers."""
    found = {master.counter}
    for queue, *rest in master.wires:
        found.update(start + i for _, start, _ in queue for i in range(scheme.block))
        found.update(number for number in rest if number is not None and number != ACCEPT)
    return found


def can_count(wire: Wire) -> bool:
    """Return whether this master counts, or may still count, for the client's attempt."""
    return wire.answer is not None or any(use != OLD for _, _, use in wire.queue)


def tidy(scheme: Scheme, master: Master) -> Master:
    """Remove everything that can have no effect any more, so that equal futures are equal states."""
    counter, keys, wires = master
    tidied = []
    for who, wire in enumerate(wires):
        queue = _useful(scheme, counter, wire.queue)
        if queue and queue[0][0] == 2 and scheme.asks_key:
            if keys[-1] != (scheme.clients + who if queue[0][2] == OLD else who):
                # A token never comes back.
                queue = queue[1:]
        wire = wire._replace(queue=queue)
        if not can_count(wire):
            wire = Wire(queue)
            if scheme.pass_on != "keyed":
                keys = _without(scheme, keys, who)
        if keys[-1] == scheme.clients + who and not (queue and queue[0][0] == 2):
            keys = (*keys[:-1], NOBODY)
        tidied.append(wire)
    return Master(counter, keys, tuple(tidied))


def _useful(scheme: Scheme, counter: int, queue: tuple[Message, ...]) -> tuple[Message, ...]:
    """Drop messages that cannot raise the counter, unless their answer counts or round 2 needs their key."""
    if not queue or (scheme.losses and scheme.lost_as == "zero"):
        return queue
    kept: list[Message] = []
    for turn, start, use in reversed(queue):
        needed = use == WANTED or bool(kept and kept[-1][0] == 2) if turn == 1 else not scheme.asks_counter
        if needed or start > counter:
            kept.append((turn, start, use))
    return tuple(kept[::-1])


def _without(scheme: Scheme, keys: tuple[int, ...], who: int) -> tuple[int, ...]:
    """Remove a client's attempt from the order of keys; its key itself may stay."""
    if who not in keys:
        return keys
    return (*[key for key in keys[:-1] if key != who], scheme.clients + who if keys[-1] == who else keys[-1])
