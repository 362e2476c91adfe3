"""The clients' side of the model, and the invariants.

A master or a client is a number here, the index of an entry in a table. A run has a million states but only some ten
thousand different masters, so the steps of each master are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, permutations
from typing import Any, NamedTuple

from model import fence
from model.fence import ACCEPT, NOBODY, Master, Scheme, Wire

IDLE, PROPOSES, CONFIRMS, HOLDS = range(4)
# A floor that does not matter any more, because the attempt is above it for good.
ANY = -1
BROKEN = -1

# The masters, then the clients.
State = tuple[int, ...]
Event = tuple[Any, ...]
Moves = Iterator[tuple[tuple[int, ...], int, Event]]


class Client(NamedTuple):
    """One client: its remaining attempts, and the state of the present one."""

    left: int
    phase: int = IDLE
    # For a holder: the highest fence that it passed on.
    start: int = 0
    end: int = 0
    # The highest fence given out before this attempt began, unless start is above it.
    floor: int = ANY
    # The starts of the blocks that were granted since, or in use when it began.
    rivals: tuple[int, ...] = ()


class Clients(NamedTuple):
    """All clients, the highest fence given out so far, and how many counters may still be lost."""

    each: tuple[Client, ...]
    # ANY if no fence was given out, or if no later attempt will be compared with it.
    given: int
    losses: int


class Fences:
    """The steps of a scheme, beginning with the state `first`."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.quorum = scheme.masters // 2 + 1
        self.masters: list[Master] = []
        self.clients: list[Clients] = []
        self._numbers: dict[Master | Clients, int] = {}
        # By master, by client.
        self._answers: list[list[int | None]] = []
        # By master: the numbers at hand there.
        self._at: list[set[int]] = []
        # By master, by client: whether the master may still count.
        self._open: list[list[bool]] = []
        # By clients: the clients that confirm, and the orders of names that `canonical` tries.
        self._about: list[tuple[list[int], list[tuple[int, ...]]]] = []
        self._executions: dict[int, list[tuple[int, str]]] = {}
        self._turns: dict[Any, dict[int, int]] = {}
        wires = (Wire(),) * len(scheme.attempts)
        nothing = self._master(Master(0, (NOBODY,), wires))
        clients = self._clients([Client(left) for left in scheme.attempts], ANY, scheme.losses)
        self.first: State = (*[nothing] * scheme.masters, clients)

    def moves(self, state: State) -> Moves:
        """Yield all possible next steps: the masters and the clients after each step, and its event.

        A step that breaks an invariant leads to the clients BROKEN, and the invariant is the last word of its event.
        """
        masters, clients = state[:-1], state[-1]
        for at, master in enumerate(masters):
            if at and master == masters[at - 1]:
                # It is the same as the previous master by symmetry.
                continue
            for after, event in self._executions.get(master) or self._executed(master):
                yield (*masters[:at], after, *masters[at + 1 :]), clients, (at, event)
        here = self.clients[clients]
        for who, client in enumerate(here.each):
            if client.phase == PROPOSES or client.phase == CONFIRMS:
                yield from self._answered(masters, here, who, client)
            elif client.phase == HOLDS:
                yield from self._passed_on(masters, here, who, client)
            if client.left:
                yield from self._begun(masters, here, who, client)
        if here.losses:
            yield from self._lost(masters, here)

    def settled(self, masters: tuple[int, ...], clients: int) -> State:
        """Give up the attempts that no quorum can confirm any more; only their messages remain."""
        for who in self._about[clients][0]:
            if sum([self._open[master][who] for master in masters]) < self.quorum:
                each, given, losses = self.clients[clients]
                clients = self._clients(replaced(each, who, Client(each[who].left)), given, losses)
                masters = self._turn(masters, fence.proposed, who, None)
        return (*masters, clients)

    def canonical(self, state: State) -> State:
        """Return the one representative of all states that differ only by the names of masters and clients."""
        masters, clients = state[:-1], state[-1]
        orders = self._about[clients][1]
        if not orders:
            return (*sorted(masters), clients)
        each, given, losses = self.clients[clients]
        in_order = self._clients([each[who] for who in orders[0]], given, losses)
        return (*min([sorted(self._turn(masters, fence.swapped, order)) for order in orders]), in_order)

    def _master(self, master: Master) -> int:
        master = fence.tidy(self.scheme, master)
        number = self._numbers.get(master)
        if number is None:
            number = self._numbers[master] = len(self.masters)
            self.masters.append(master)
            self._answers.append([wire.answer for wire in master.wires])
            self._at.append(fence.numbers(self.scheme, master))
            self._open.append([fence.can_count(wire) for wire in master.wires])
        return number

    def _clients(self, each: Sequence[Client], given: int, losses: int) -> int:
        if self.scheme.pass_on == "anyhow" and not any([client.left for client in each]):
            # It would only bound later attempts.
            given = ANY
        clients = Clients(tuple(each), given, losses)
        number = self._numbers.get(clients)
        if number is None:
            number = self._numbers[clients] = len(self.clients)
            self.clients.append(clients)
            who = range(len(each))
            orders = [order for order in permutations(who) if [each[w] for w in order] == sorted(each)]
            confirming = [w for w in who if each[w].phase == CONFIRMS]
            self._about.append((confirming, [] if orders == [tuple(who)] else orders))
        return number

    def _executed(self, master: int) -> list[tuple[int, str]]:
        done = fence.executions(self.scheme, self.masters[master])
        found = self._executions[master] = [(self._master(after), event) for after, event in done]
        return found

    def _turn(self, masters: tuple[int, ...], step: Callable[..., Master], *arguments: Any) -> tuple[int, ...]:
        """Do one client's step on each master; the result for each different master is computed once."""
        key = (step, *arguments)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = {}
        for master in masters:
            if master not in turn:
                turn[master] = self._master(step(self.scheme, self.masters[master], *arguments))
        return tuple([turn[master] for master in masters])

    def _answered(self, masters: tuple[int, ...], here: Clients, who: int, client: Client) -> Moves:
        """Count the answers that arrived: all of them, or those of any quorum."""
        answers = [self._answers[master][who] for master in masters]
        have = [at for at, answer in enumerate(answers) if answer is not None]
        if len(have) < self.quorum:
            return
        if self.scheme.counts_up:
            for number in {max(answers[at] or 0 for at in some) for some in combinations(have, self.quorum)}:
                yield self._granted(masters, here, who, client, number)
            return
        if answers.count(ACCEPT) >= self.quorum:
            yield self._granted(masters, here, who, client, client.start)
        if client.phase == PROPOSES:
            seen = set()
            for size in range(self.quorum, len(have) + 1):
                for some in combinations(have, size):
                    votes = [answers[at] or 0 for at in some]
                    ask = some if self.scheme.confirm == "answered" else range(len(masters))
                    start = max(client.end, *votes) + 1
                    if votes.count(ACCEPT) < self.quorum and (start, ask) not in seen:
                        seen.add((start, ask))
                        yield self._confirming(masters, here, who, start, ask)

    def _granted(
        self, masters: tuple[int, ...], here: Clients, who: int, client: Client, number: int
    ) -> tuple[tuple[int, ...], int, Event]:
        """Grant a block, and record the bounds that the grant puts on the other attempts under way."""
        broken = self._broken(masters, who, client, number)
        if broken:
            return masters, BROKEN, (who, "is granted", number, broken)
        each = list(here.each)
        end = number + self.scheme.block - 1
        for other, rival in enumerate(each):
            if other != who and rival.phase in (PROPOSES, CONFIRMS):
                masters = self._turn(masters, fence.ranked, who, number, other, rival.start)
                if end >= rival.start:
                    each[other] = rival._replace(rivals=tuple(sorted((*rival.rivals, number))))
        each[who] = Client(client.left, HOLDS, number, end)
        if number == end:
            each[who] = Client(client.left)
            masters = self._turn(masters, fence.proposed, who, None)
        return masters, self._clients(each, max(here.given, number), here.losses), (who, "is granted", number)

    def _broken(self, masters: tuple[int, ...], who: int, client: Client, number: int) -> str | None:
        """Return the invariant that a grant would break, or None."""
        if number <= client.floor:
            return f"not above {client.floor}, which was given out before this attempt began"
        if any(abs(number - rival) < self.scheme.block for rival in client.rivals):
            return "given out twice"
        for master in masters:
            wire = self.masters[master].wires[who]
            if fence.counts(self.scheme, wire):
                if wire.above is not None and number <= wire.above:
                    return f"not above {wire.above}, whose key stood earlier on a master of both"
                if wire.below is not None and number >= wire.below:
                    return f"not below {wire.below}, whose key stood later on a master of both"
        return None

    def _confirming(
        self, masters: tuple[int, ...], here: Clients, who: int, start: int, ask: Sequence[int]
    ) -> tuple[tuple[int, ...], int, Event]:
        """Begin round 2."""
        client = here.each[who]
        asked = self._turn(masters, fence.confirmed, who, start, True)
        if len(ask) < len(masters):
            passed = self._turn(masters, fence.confirmed, who, start, False)
            asked = tuple([asked[at] if at in ask else passed[at] for at in range(len(masters))])
        after = self._client(client.left, CONFIRMS, start, client.floor, client.rivals)
        return asked, self._clients(replaced(here.each, who, after), *here[1:]), (who, "confirms", start)

    def _client(self, left: int, phase: int, start: int, floor: int, rivals: Sequence[int]) -> Client:
        block = self.scheme.block
        near = tuple([rival for rival in rivals if rival + block > start])
        return Client(left, phase, start, start + block - 1, floor if floor >= start else ANY, near)

    def _passed_on(self, masters: tuple[int, ...], here: Clients, who: int, client: Client) -> Moves:
        """Pass the lease on with the next fence of its block."""
        number, when = client.start + 1, self.scheme.pass_on
        if when in ("held", "keyed"):
            standing = [master for master in masters if self.masters[master].keys[-1] == who]
            if sum(when == "keyed" or self._answers[master][who] == ACCEPT for master in standing) < self.quorum:
                return
        if when != "anyhow" and number <= here.given:
            broken = f"not above {here.given}, which was given out before the hand-off"
            yield masters, BROKEN, (who, "passes on", number, broken)
            return
        after = client._replace(start=number)
        if number == client.end:
            after = Client(client.left)
            masters = self._turn(masters, fence.proposed, who, None)
        clients = self._clients(replaced(here.each, who, after), max(here.given, number), here.losses)
        yield masters, clients, (who, "passes on", number)

    def _begun(self, masters: tuple[int, ...], here: Clients, who: int, client: Client) -> Moves:
        """Begin an attempt with a start of every rank among the numbers at hand."""
        block = self.scheme.block
        in_use = [c.end - block + 1 for other, c in enumerate(here.each) if c.phase == HOLDS and other != who]
        lowest = min([self.masters[master].counter for master in masters])
        highest = max(self._at_hand(masters, here)) + self.scheme.spare
        for start in [0] if self.scheme.counts_up else range(lowest, highest + 1):
            begun = self._client(client.left - 1, PROPOSES, start, here.given, in_use)
            after = self._turn(masters, fence.proposed, who, start)
            clients = self._clients(replaced(here.each, who, begun), *here[1:])
            if self.scheme.gap:
                after, clients = self._narrowed(after, clients)
            yield after, clients, (who, "proposes", start)

    def _lost(self, masters: tuple[int, ...], here: Clients) -> Moves:
        """Lose the counter of a master: to the seed at any moment, or to zero while all clients are idle."""
        counters = [self.masters[master].counter for master in masters]
        values = [max(counters), max(counters) + 1]
        if self.scheme.lost_as == "zero":
            values = [0] if all(client.phase == IDLE for client in here.each) else []
        clients = self._clients(here.each, here.given, here.losses - 1)
        for value in values:
            after = self._turn(masters, fence.lost, value)
            for at, counter in enumerate(counters):
                if counter != value:
                    yield (*masters[:at], after[at], *masters[at + 1 :]), clients, (at, f"loses F, now {value}")

    def _at_hand(self, masters: tuple[int, ...], here: Clients) -> set[int]:
        """Collect the numbers that a later step may be compared with."""
        found = set().union(*[self._at[master] for master in masters])
        found.add(here.given)
        for client in here.each:
            if client.phase != IDLE:
                found |= {client.start, client.end, client.floor}
                found.update(rival + i for rival in client.rivals for i in range(self.scheme.block))
        found.discard(ANY)
        return found

    def _narrowed(self, masters: tuple[int, ...], clients: int) -> tuple[tuple[int, ...], int]:
        """Narrow the empty ranges between numbers.

        Later steps depend only on the order of the numbers and on which of them are adjacent.
        """
        here = self.clients[clients]
        numbers = sorted(self._at_hand(masters, here))
        to = {numbers[0]: 0}
        for low, high in pairwise(numbers):
            to[high] = to[low] + min(high - low, self.scheme.gap)
        if numbers[-1] == to[numbers[-1]]:
            return masters, clients
        to[ANY] = ANY
        each = [
            Client(left, phase, to[start], to[end], to[floor], tuple([to[rival] for rival in rivals]))
            if phase != IDLE
            else Client(left)
            for left, phase, start, end, floor, rivals in here.each
        ]
        masters = self._turn(masters, fence.renumbered, tuple(to.items()))
        return masters, self._clients(each, to[here.given], here.losses)


def replaced(each: tuple[Client, ...], who: int, client: Client) -> tuple[Client, ...]:
    return (*each[:who], client, *each[who + 1 :])
