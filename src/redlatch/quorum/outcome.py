"""The rules that turn votes into a lock, a release or an error, for every kind of lock and for batches.

Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError

from redlatch.errors import RETRY_AFTER, LockLost, MasterQuarantined, QuorumUnavailable
from redlatch.loss import FORGOTTEN, IN_DOUBT, RAN_OUT, RELEASED, Loss

from ..votes.ballot import Ballot
from ..votes.units import SECOND
from .effects import Effect
from .hold import Hold
from .lease import Lease
from .policy import Doubts
from .quorum import Quorum


def granted(quorum: Quorum, hold: Hold, won: bool, deadline_ns: int, now_ns: int) -> bool:
    """Return whether an attempt has won: a quorum said yes before the deadline, and no vote is in doubt.

    A master may have forgotten the lock since it voted, and a user may have deleted the key meanwhile.

    Args:
        now_ns: the clock, read after the last vote that counts for `won`. A vote that comes later must not count.
    """
    if not won or now_ns >= deadline_ns or quorum.doubts.cover(hold.lease.since_ns, hold.key):
        return False
    return not quorum.queues.deleted(hold)


def is_final(ballot: Ballot, failures: int) -> bool:
    """Return whether to give up after this many ballots in a row without a verdict.

    Connections that broke are renewed at once, so a second ballot may succeed. A ballot whose time is over is final.
    """
    return failures > 1 or not ballot.decided


def asking(quorum: Quorum, hold: Hold, what: str, steps: Generator[Effect, None, Any]) -> Generator[Effect, None, Any]:
    """Perform steps that ask the masters, and ask once more if connections broke; return their result.

    The steps may go on after each ballot without a verdict, unless it was final.
    """
    began = asked = quorum.clock.now()
    last: Ballot | None = None
    failures = 0
    while True:
        try:
            effect = next(steps)
        except StopIteration as ended:
            return ended.value
        now = quorum.clock.now()
        if last is not None:
            failures = failures + 1 if last.unavailable() else 0
            if failures and is_final(last, failures):
                raise no_quorum(what, quorum, hold, last, now - asked, now - began)
        last = effect if isinstance(effect, Ballot) else None
        asked = now
        yield effect


def broke(ballot: Ballot) -> bool:
    """Return whether a connection broke under the ballot: a new one may bring the vote."""
    causes = (ballot.causes or {}).values()
    return ballot.decided and any([isinstance(cause, (ConnectionResetError, BrokenPipeError)) for cause in causes])


def may_heal(ballot: Ballot) -> bool:
    """Return whether waiting may bring a quorum. It does not help against missing rights or wrong passwords."""
    causes = (ballot.causes or {}).values()
    refusals = [cause for cause in causes if isinstance(cause, (AuthenticationError, NoPermissionError))]
    return ballot.size - len(refusals) >= ballot.quorum


def end_release(quorum: Quorum, hold: Hold, ballot: Ballot, late: bool, resent: bool, started_ns: int) -> bool:
    """End a release according to its votes; return False if its command must be sent again.

    Raises:
        LockLost: the lock was lost before the release.
        QuorumUnavailable: too many masters failed. The hold is UNCONFIRMED, so its release may be called again.
    """
    if not ballot.unavailable():
        lost = late or ballot.refused()
        if lost and not late and resent:
            lost = not proves_nothing(quorum.doubts, ballot, hold.lease, quorum.clock.now())
        why = why_lost(quorum, hold, late) if lost else None
        hold.count_end(quorum, started_ns, why)
        hold.free()
        if why is not None:
            raise lost_before(quorum, hold, ballot, why, quorum.clock.now() - started_ns)
        return True
    first = ~ballot.command.tried
    ballot.command.tried |= ~(ballot.unsent | refusers(quorum.doubts, ballot, hold.lease, quorum.clock.now()))
    # A "no" of these masters that still comes answers the first copy.
    ballot.unsent |= first
    if is_final(ballot, 1 + resent):
        hold.to_unconfirmed(ballot.command)
        raise no_quorum("release", quorum, hold, ballot, quorum.clock.now() - started_ns)
    return False


def refusers(doubts: Doubts, ballot: Ballot, lease: Lease, now_ns: int) -> int:
    """Return a bit mask of the masters whose "no" to a release means that they had forgotten the lease before it.

    A "no" may be an echo if the master may have obeyed an earlier copy of the release, and still has that memory. When
    the lease is over, such a master says "no" because the key has expired. A master that said "yes" to an earlier copy
    had the key: after a fail-over, a new connection begins with a copy for which no caller waits.
    """
    key = ballot.command.key
    kept = sum([1 << index for index in range(ballot.size) if doubts.kept(index, lease.asked_ns, key)])
    refused = ballot.refusers & ~ballot.command.obeyed
    return refused & ~(kept if now_ns >= lease.deadline_ns else ballot.command.tried & kept)


def proves_nothing(doubts: Doubts, ballot: Ballot, lease: Lease, now_ns: int) -> bool:
    """Return True unless a quorum has said that it had forgotten the lease before this release."""
    return refusers(doubts, ballot, lease, now_ns).bit_count() <= ballot.size - ballot.quorum


def lost_before(quorum: Quorum, hold: Hold, ballot: Ballot, why: Loss, elapsed_ns: int) -> LockLost:
    return loss(why, hold, elapsed_ns, _causes(quorum, ballot, elapsed_ns))


def why_lost(quorum: Quorum, hold: Hold, over: bool, upkeep: Any = None, now_ns: int = 0) -> Loss:
    """Return why the lease of a hold is lost. This is the only place that decides it.

    Args:
        over: whether its validity is over. If not, the masters have said that they do not have the key.
        upkeep: may know why the validity ran out.
    """
    known = _known_loss(hold)
    if known is not None and known is not RAN_OUT:
        return known
    if was_released(quorum, hold):
        return RELEASED
    if not over:
        return FORGOTTEN
    why: Loss | None = None if upkeep is None else upkeep.why_over(now_ns)
    return RAN_OUT if why is None else why


def _known_loss(hold: Hold) -> Loss | None:
    if hold.lost_because is None:
        return None
    token, why = hold.lost_because
    return why if token is hold.lease.token else None


def why_invalid(quorum: Quorum, hold: Hold, upkeep: Any) -> Loss:
    why = why_lost(quorum, hold, True, upkeep, quorum.clock.now())
    if _known_loss(hold) is not None or quorum.released_ns or not quorum.doubts.cover(hold.lease.asked_ns, hold.key):
        return why
    return IN_DOUBT


def no_quorum(
    what: str, quorum: Quorum, hold: Hold, ballot: Ballot, waited_ns: int, elapsed_ns: int = 0
) -> QuorumUnavailable:
    silent = 0
    if not ballot.decided:
        named = [index for index in ballot.silent if ballot.causes is None or index not in ballot.causes]
        # A ballot that was held was sent to no master.
        silent = len(named) or ballot.size - ballot.yes - ballot.no - ballot.failed
    parts = [f"{ballot.failed} failed"] if ballot.failed else []
    parts += [f"{silent} did not answer within {waited_ns / SECOND:.3f} s"] if silent else []
    causes = _causes(quorum, ballot, waited_ns)
    return QuorumUnavailable(
        f"{what} of {hold.name!r}: of {quorum.size} masters {' and '.join(parts)}; {quorum.majority} must agree",
        name=hold.name,
        elapsed=max(elapsed_ns, waited_ns) / SECOND,
        causes=causes,
        retry_after=_retry_after(quorum, causes),
    )


def repeated(error: QuorumUnavailable, elapsed_ns: int) -> QuorumUnavailable:
    return QuorumUnavailable(
        error.args[0],
        name=error.name,
        elapsed=elapsed_ns / SECOND,
        causes=error.causes,
        retry_after=error.retry_after,
    )


def _retry_after(quorum: Quorum, causes: dict[str, BaseException]) -> float:
    now_ns = quorum.clock.now()
    waits = [0.0] * max(0, quorum.size - len(causes))
    for cause in causes.values():
        waits.append(cause.left(now_ns) if isinstance(cause, MasterQuarantined) and cause.until_ns else RETRY_AFTER)
    longest: float = quorum.retry.longest
    return sorted(waits)[quorum.majority - 1] or longest


def was_released(quorum: Quorum, hold: Hold) -> bool:
    """Return whether the closed client ended the lease before it ran out."""
    return 0 < quorum.released_ns <= hold.lease.deadline_ns


def loss(why: Loss, hold: Hold, elapsed_ns: int = 0, causes: dict[str, BaseException] | None = None) -> LockLost:
    text = f"{hold.name!r} was lost: {why}"
    return LockLost(text, name=hold.name, elapsed=elapsed_ns / SECOND, causes=causes, reason=why)


def _causes(quorum: Quorum, ballot: Ballot, waited_ns: int) -> dict[str, BaseException]:
    causes = dict(ballot.causes or {})
    for index in ballot.silent:
        causes.setdefault(index, TimeoutError(f"no answer within {waited_ns / SECOND:.3f} s"))
    now_ns = quorum.clock.now()
    for index, cause in causes.items():
        if isinstance(cause, MasterQuarantined):
            causes[index] = cause.as_of(now_ns)
    # A handover may have ended meanwhile.
    names = dict(enumerate(quorum.masters))
    return {names.get(index, f"masters[{index}] of the earlier list"): cause for index, cause in sorted(causes.items())}
