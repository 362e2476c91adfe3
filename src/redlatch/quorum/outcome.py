"""The rules that turn votes into a lock, a release or an error.

The rules are the same for every kind of lock and for batches.
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
from .counting import count_end
from .effects import Effect
from .hold import Hold
from .lease import Lease
from .policy import Doubts
from .quorum import Quorum


def granted(quorum: Quorum, hold: Hold, won: bool, deadline_ns: int, now_ns: int) -> bool:
    """Return whether an attempt has won the lock.

    A quorum of yes votes is not enough. The validity must not be over. No vote may be in doubt, because a master may
    have forgotten the lock since it voted. And the key must not have been deleted since the attempt began.

    Args:
        won: whether a quorum voted yes.
        deadline_ns: when the validity of the attempt ends.
        now_ns: the clock, read after the last vote that counts for `won`. A vote that comes later must not count.
    """
    if not won or now_ns >= deadline_ns or quorum.doubts.cover(hold.lease.since_ns):
        return False
    return not quorum.queues.deleted(hold)


def is_final(ballot: Ballot, failures: int) -> bool:
    """Return whether to give up after a ballot without a verdict.

    The client at once renews connections that broke during the first ballot, so a second ballot may succeed. A second
    failure in a row is final. A ballot whose time is over is final, too.

    Args:
        failures: how many ballots in a row, including this one, had no verdict.
    """
    return failures > 1 or not ballot.decided


def asking(quorum: Quorum, hold: Hold, what: str, steps: Generator[Effect, None, Any]) -> Generator[Effect, None, Any]:
    """Perform steps that ask the masters, and ask once more if connections broke; return their result.

    Args:
        hold: has the name, for the error.
        what: the name of the call, for the error.
        steps: they may go on after each ballot without a verdict. They get no further if that ballot was final.

    Raises:
        QuorumUnavailable: a ballot without a verdict was final (`is_final`), and the steps have not ended.
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
    """Return True if a ballot was decided while a connection was broken: a new connection may bring the vote."""
    causes = (ballot.causes or {}).values()
    return ballot.decided and any([isinstance(cause, (ConnectionResetError, BrokenPipeError)) for cause in causes])


def may_heal(ballot: Ballot) -> bool:
    """Return True if waiting may bring a quorum; waiting does not help against missing rights or wrong passwords."""
    causes = (ballot.causes or {}).values()
    refusals = [cause for cause in causes if isinstance(cause, (AuthenticationError, NoPermissionError))]
    return ballot.size - len(refusals) >= ballot.quorum


def end_release(quorum: Quorum, hold: Hold, ballot: Ballot, late: bool, resent: bool, started_ns: int) -> bool:
    """End a release according to its votes; return False if its command must be sent again.

    Args:
        late: whether the validity was over when the release began.
        resent: whether the command was sent before.
        started_ns: when the release began.

    Raises:
        LockLost: the lock was lost before the release.
        QuorumUnavailable: too many masters failed. The hold is UNCONFIRMED, so its release may be called again.
    """
    if not ballot.unavailable():
        lost = late or ballot.refused()
        if lost and not late and resent:
            lost = not proves_nothing(quorum.doubts, ballot, hold.lease, quorum.clock.now())
        why = why_lost(quorum, hold, late) if lost else None
        count_end(quorum, hold, started_ns, why)
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

    A master that has obeyed one copy of a release says "no" to the next one. So a "no" may be an echo if the master may
    have obeyed an earlier copy, and if its memory is the one that was asked then. And when the lease is over, a master
    with that memory says "no" because the key has expired. A master that has said "yes" to an earlier copy had the key,
    regardless of its answer now. For example, after a fail-over a new connection begins with a copy for which no caller
    waits.

    Args:
        lease: the lease that the holder had.
        now_ns: the time after the last vote.
    """
    kept = sum([1 << index for index in range(ballot.size) if doubts.kept(index, lease.asked_ns)])
    refused = ballot.refusers & ~ballot.command.obeyed
    return refused & ~(kept if now_ns >= lease.deadline_ns else ballot.command.tried & kept)


def proves_nothing(doubts: Doubts, ballot: Ballot, lease: Lease, now_ns: int) -> bool:
    """Return whether no quorum has said that it had forgotten the lease before this release."""
    return refusers(doubts, ballot, lease, now_ns).bit_count() <= ballot.size - ballot.quorum


def lost_before(quorum: Quorum, hold: Hold, ballot: Ballot, why: Loss, elapsed_ns: int) -> LockLost:
    """Return the error for an extension or a release of a lock that was lost for this reason (`why_lost`)."""
    return loss(why, hold, elapsed_ns, _causes(quorum, ballot, elapsed_ns))


def why_lost(quorum: Quorum, hold: Hold, over: bool, upkeep: Any = None, now_ns: int = 0) -> Loss:
    """Return why the lease of a hold is lost. This is the only place that decides it.

    Args:
        over: whether its validity is over. If it is not, the masters have said that they do not have the key.
        upkeep, now_ns: the upkeep of the lock, which may know why the validity ran out, and the time; or None.
    """
    known = _known_loss(hold)
    # The renewal may know why the validity ran out.
    if known is not None and known is not RAN_OUT:
        return known
    if was_released(quorum, hold):
        return RELEASED
    if not over:
        return FORGOTTEN
    why: Loss | None = None if upkeep is None else upkeep.why_over(now_ns)
    return RAN_OUT if why is None else why


def _known_loss(hold: Hold) -> Loss | None:
    """Return the loss of the lease that the renewal or an extension has found; None if none has."""
    if hold.lost_because is None:
        return None
    token, why = hold.lost_because
    return why if token is hold.lease.token else None


def why_invalid(quorum: Quorum, hold: Hold, upkeep: Any) -> Loss:
    """Return why a holder may not rely on its lease: it is lost, or in doubt."""
    why = why_lost(quorum, hold, True, upkeep, quorum.clock.now())
    if _known_loss(hold) is not None or quorum.released_ns or not quorum.doubts.cover(hold.lease.asked_ns):
        return why
    return IN_DOUBT


def no_quorum(
    what: str, quorum: Quorum, hold: Hold, ballot: Ballot, waited_ns: int, elapsed_ns: int = 0
) -> QuorumUnavailable:
    """Return the error for a ballot without a verdict.

    Args:
        what: the name of the call, for the message.
        waited_ns: how long the caller waited for the ballot.
        elapsed_ns: how long the whole call took, if that is longer.
    """
    silent = 0
    if not ballot.decided:
        named = [index for index in ballot.silent if ballot.causes is None or index not in ballot.causes]
        # A ballot that was held was sent to no master, so masters without a vote are not all silent.
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
    """Return a copy of the error for an acquire that took this long."""
    return QuorumUnavailable(
        error.args[0],
        name=error.name,
        elapsed=elapsed_ns / SECOND,
        causes=error.causes,
        retry_after=error.retry_after,
    )


def _retry_after(quorum: Quorum, causes: dict[str, BaseException]) -> float:
    """Return the seconds after which a quorum may vote, if all goes well (see `Retryable.retry_after`)."""
    now_ns = quorum.clock.now()
    waits = [0.0] * max(0, quorum.size - len(causes))
    for cause in causes.values():
        waits.append(cause.left(now_ns) if isinstance(cause, MasterQuarantined) and cause.until_ns else RETRY_AFTER)
    longest: float = quorum.retry.longest
    return sorted(waits)[quorum.majority - 1] or longest


def was_released(quorum: Quorum, hold: Hold) -> bool:
    """Return whether the closed client has ended the lease of a hold before it ran out."""
    return 0 < quorum.released_ns <= hold.lease.deadline_ns


def loss(why: Loss, hold: Hold, elapsed_ns: int = 0, causes: dict[str, BaseException] | None = None) -> LockLost:
    text = f"{hold.name!r} was lost: {why}"
    return LockLost(text, name=hold.name, elapsed=elapsed_ns / SECOND, causes=causes, reason=why)


def _causes(quorum: Quorum, ballot: Ballot, waited_ns: int) -> dict[str, BaseException]:
    """Return the error of each master that failed or was silent, by the address of the master."""
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
