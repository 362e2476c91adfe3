"""Redirects: a node of a cluster says that another one has the slot of a key, and the ballot goes there.

No redirect is a vote. The ballot is sent again within the time of its caller:

  * MOVED: the slot belongs to another node. Its entry in the table changes at once, and the topology is read again.
  * ASK: the slot is on its way, and the key is not here any more. Only this command goes to the target, behind ASKING.
  * TRYAGAIN: the keys of a script are on both sides. It is sent again after a pause.
  * READONLY, LOADING: the node has lost its slots, or has just started. The topology is read again.
  * CLUSTERDOWN is a failed vote, except on a release: it is sent again after a pause.

A ballot that acquires is dropped once its caller has left, or the release that undoes it has been sent. That release
takes the same way: to the link that may still execute the acquire, and on from there (`Routes.link_of`, `_asked_link`).
It is sent on even after its caller has left.

These functions run only after a change of the topology, so they are not compiled.

Source of the protocol: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from redlatch.votes.commands import TIME
from redlatch.votes.key import SLOTS, slot_of
from redlatch.votes.units import MILLISECOND

# Two nodes may name each other during an atomic migration. From the third redirect on, a ballot pauses; the pause
# doubles.
MOST_HOPS = 16
FIRST_PAUSE_NS = 2 * MILLISECOND
LONGEST_PAUSE_NS = 128 * MILLISECOND

# A release is sent more often, because TRYAGAIN lasts until the slot has moved.
MOST_HOPS_OF_RELEASES = 128

# A command whose slot has no node is sent with the next topology. Until then its time is looked at after 16 ms each.
UNROUTED_PAUSES = 4

# In `Ballot.resent`, beside the bits of the masters: the ballot was sent on.
REDIRECTED = 1 << 62

_LOST = ("READONLY", "LOADING")
_AGAIN = ("TRYAGAIN", *_LOST)
_DOWN = "CLUSTERDOWN"


class Redirected(ResponseError):
    """A node answers that another one has the slot of a key.

    Attributes:
        host, port: where the other node is; an empty host is that of the node which answers.
        once: whether only this command must go there (ASK).
    """

    def __init__(self, text: str, host: str, port: int, once: bool) -> None:
        super().__init__(text)
        self.host = host
        self.port = port
        self.once = once


def redirect(fleet: Any, link: Any, ballot: Any, error: Exception) -> bool:
    """Send a ballot on after an error reply of a link; return False if the error is a failed vote."""
    routes = fleet.routes
    text = str(error)
    if text.startswith(_DOWN):
        routes.source.refresh()
        # An acquire fails, and the patience of its caller decides. A release is sent again.
        if not ballot.command.releases:
            return False
    elif not (isinstance(error, Redirected) or text.startswith(_AGAIN)):
        return False
    if ballot.command.meaning == TIME:
        # The marker's slot has left the node, or is about to. The next topology moves the marker.
        routes.source.refresh()
        return True
    if not _goes_on(fleet, link, ballot):
        return False
    behind_asking = routes.asked.pop(ballot, None) is not None
    on_its_way = isinstance(error, Redirected) and error.once and not behind_asking
    # After TRYAGAIN, the ballot goes through the source of the slot again.
    ballot.hops += not on_its_way or not ballot.hops
    # Shown if its time is over before a node votes. TRYAGAIN says more than the ASK that follows it.
    if ballot.causes is None or not isinstance(error, Redirected):
        ballot.causes = {link.voter: error}
    # A node that has not executed the script may lack it.
    ballot.resent = REDIRECTED
    # From now on the engine looks for such ballots.
    fleet.resent = True
    if isinstance(error, Redirected) and not error.once:
        _move(fleet, link, ballot, error)
    elif isinstance(error, Redirected) and not behind_asking:
        _ask(fleet, link, ballot, error)
    else:
        if text.startswith(_LOST):
            routes.source.refresh()
        delay(fleet, ballot, ballot.hops)
    return True


def _goes_on(fleet: Any, link: Any, ballot: Any) -> bool:
    most = MOST_HOPS_OF_RELEASES if ballot.command.releases else MOST_HOPS
    return ballot.hops < most and _is_wanted(fleet, ballot) and not link.has_undone(ballot.command)


def _is_wanted(fleet: Any, ballot: Any) -> bool:
    if ballot.command.releases:
        return True
    return not ballot.decided and not 0 < ballot.until_ns <= fleet.clock.now()


def _target(fleet: Any, link: Any, error: Redirected) -> Any:
    known = fleet.routes.links
    host = error.host or next((host for (host, _), one in known.items() if one is link), "")
    return known.get((host, error.port))


def _ask(fleet: Any, link: Any, ballot: Any, error: Redirected) -> None:
    target = _target(fleet, link, error)
    if target is None or not target.up:
        fleet.routes.source.refresh()
        delay(fleet, ballot, ballot.hops)
    else:
        fleet.routes.named.add((slot_of(ballot.command.key), target.index))
        fleet.routes.asked[ballot] = target
        fleet.send_asking(target, ballot)


def _move(fleet: Any, link: Any, ballot: Any, error: Redirected) -> None:
    routes, slot = fleet.routes, slot_of(ballot.command.key)
    target = _target(fleet, link, error)
    if target is link:
        # The connection leads to what the node was before.
        fleet.drop_link(link, ConnectionAbortedError(f"{link.address} names itself for a slot; it has changed"))
    elif routes.table[slot] in (link, None):
        # Otherwise a newer redirect or topology has changed the slot meanwhile. A node that is not known yet comes with
        # the next topology; until then no command goes to the former one.
        routes.move(slot, target, fleet.clock.now())
        fleet.changed.append((link.voter, frozenset([slot])))
        if target is not None:
            routes.named.add((slot, target.index))
    # After the move: a topology that was asked for before it does not undo it.
    routes.source.refresh((error.host, error.port) if error.host else None)
    owner = routes.table[slot]
    if target is None or owner is None or ballot.hops > 2:
        delay(fleet, ballot, max(1, ballot.hops - 2))
    else:
        # Not by `link_of`: the link that has just answered may be the former one.
        fleet.send_routed(owner, ballot)
        fleet.staged = True


def delay(fleet: Any, ballot: Any, times: int) -> None:
    """Send a ballot after a pause, which doubles each time, or as soon as there is a new topology."""
    pause_ns = min(FIRST_PAUSE_NS << min(times - 1, 10), LONGEST_PAUSE_NS)
    due_ns = fleet.clock.now() + pause_ns
    # A question of this client may overtake a release, and the server pushes nothing for our own change.
    ballot.resent |= REDIRECTED
    fleet.resent = True
    fleet.routes.delayed.append((due_ns, ballot))
    fleet.silence.remind(fleet.ballot_of(ballot.command), due_ns)


def send_elsewhere(fleet: Any, link: Any, ballot: Any) -> None:
    """Send a ballot whose slot has no link, or a release that must follow an acquire behind ASKING."""
    routes = fleet.routes
    if ballot.command.releases:
        _withdraw(fleet, ballot.command)
        target = _asked_link(routes, ballot.command)
        if target is not None:
            routes.asked[ballot] = target
            fleet.send_asking(target, ballot)
            return
    if link is not None:
        fleet.send_routed(link, ballot)
        return
    routes.source.refresh()
    if ballot.command.releases and ballot.hops < MOST_HOPS_OF_RELEASES:
        # The error of its caller names the cause.
        ballot.causes = ballot.causes if routes.cause is None else {0: routes.cause}
        ballot.hops += 1
        delay(fleet, ballot, ballot.hops)
    elif ballot.command.releases or routes.cause is not None:
        fleet.fail_vote(0, ballot, routes.cause or _no_node())
    else:
        delay(fleet, ballot, UNROUTED_PAUSES)


def _no_node() -> TimeoutError:
    return TimeoutError("the slot of the key has found no node in time")


def _asked_link(routes: Any, release: Any) -> Any:
    for ballot, link in routes.asked.items():
        if ballot.command.token == release.token and ballot.command.key == release.key and link.up:
            return link
    return None


def _withdraw(fleet: Any, release: Any) -> None:
    """Forget the delayed ballots that a release undoes."""
    for item in list(fleet.routes.delayed):
        command = item[1].command
        if not command.releases and command.token == release.token and command.key == release.key:
            fleet.routes.delayed.remove(item)


def resume(fleet: Any, now_ns: int) -> None:
    """Send the delayed ballots that are due."""
    routes = fleet.routes
    for item in list(routes.delayed):
        due_ns, ballot = item
        # A release withdraws the acquire that it undoes, which may be due, too.
        if due_ns <= now_ns and item in routes.delayed:
            if _is_wanted(fleet, ballot):
                fleet.stage_routed(ballot)
                fleet.staged = True
            elif not ballot.decided:
                fleet.fail_vote(0, ballot, _no_node())
            # Last: after an interrupt it is sent twice rather than never.
            routes.delayed.remove(item)


def route(fleet: Any, ranges: list[tuple[int, int, int]], asked_ns: int) -> None:
    """Replace the table by a topology: (first slot, last slot, index of the link) of each range.

    Args:
        asked_ns: when the topology was asked for. A slot that MOVED has changed since then stays as it is.
    """
    routes = fleet.routes
    table: list[Any] = [None] * SLOTS
    for first, last, index in ranges:
        table[first : last + 1] = [fleet.links[index]] * (last + 1 - first)
    for slot, moved_ns in list(routes.moved.items()):
        if moved_ns > asked_ns:
            table[slot] = routes.table[slot]
        else:
            del routes.moved[slot]
    lost = [slot for slot, link in enumerate(routes.table) if link is not None and link is not table[slot]]
    for slot in lost:
        routes.leave(slot)
    routes.table, routes.cause = table, None
    if lost:
        fleet.changed.append((0, frozenset(lost)))
    for link in fleet.links:
        hand_over(fleet, link)
    resume(fleet, max([due_ns for due_ns, _ in routes.delayed], default=0))


def hand_over(fleet: Any, link: Any) -> None:
    """Give what waits for a connection to the links that have the slots now."""
    table = fleet.routes.table
    for ballot in list(link.parked):
        owner = table[slot_of(ballot.command.key)]
        if owner is not link and owner is not None:
            fleet.send_late(owner, ballot) if owner.up else fleet.park(owner, ballot)
            link.parked.remove(ballot)
    for which, ballot in list(link.owed.items()):
        owner = table[slot_of(ballot.command.key)]
        if owner is link or owner is None:
            continue
        if not owner.up:
            owner.owe(ballot, fleet.max_owed)
        elif ballot.released_lock is not None:
            fleet.send_late(owner, ballot)
        else:
            fleet.send_late(owner, fleet.ballot_of(ballot.command))
        del link.owed[which]
    fleet.staged = True
