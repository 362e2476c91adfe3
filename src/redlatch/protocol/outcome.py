"""What the votes mean: the rules that turn ballots into a lock, a release or an error.

Each rule stands here once, for every kind of lock and for batches. Compiled as `redlatch._c.protocol.outcome`, too (see
`redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from redlatch.errors import LockLost, QuorumUnavailable

from .ballot import Ballot
from .hold import SETTLING, Hold
from .policy import SECOND, Policy
from .waiting import Lines

# Why a lock was lost.
RAN_OUT, FORGOTTEN = "its validity ran out", "a quorum has forgotten it"


def granted(policy: Policy, lines: Lines, hold: Hold, won: bool, deadline_ns: int, now_ns: int) -> bool:
    """Tell whether an attempt has won the lock.

    A quorum of yes votes is not enough. The validity must not be over, no master that voted may have forgotten the
    lock since, and nobody may have deleted the key since the attempt began.

    Args:
        won: whether a quorum voted yes.
        deadline_ns: when the validity of the attempt ends.
        now_ns: the clock, read after the last vote that counts for `won`. A vote that comes later must not count.
    """
    return won and now_ns < deadline_ns and not (policy.doubts(hold.lease.since_ns) or lines.deleted(hold))


def is_final(ballot: Ballot, failures: int) -> bool:
    """Tell whether to give up after a ballot without a verdict.

    Connections that broke under the first ballot are made anew at once, so a second one may succeed. A second failure
    in a row, or a ballot whose time is over, is final.

    Args:
        failures: how many ballots in a row, with this one, had no verdict.
    """
    return failures > 1 or not ballot.decided


def end_release(policy: Policy, hold: Hold, ballot: Ballot, late: bool, resent: bool, started_ns: int) -> bool:
    """End a release by the votes on it; return False if its command is to be sent once more.

    Args:
        late: whether the validity was over when the release began.
        resent: whether the command was sent before. Then a "no" may be the work of the first one.
        started_ns: when the release began.

    Raises:
        LockLost: the lock had been lost before.
        QuorumUnavailable: too many masters failed. The hold is SETTLING then: its release may be called again.
    """
    if not ballot.unavailable():
        hold.free()
        if late or (ballot.refused() and not resent):
            raise lost_before(policy, hold, ballot, late, policy.clock.now() - started_ns)
        return True
    if is_final(ballot, 1 + resent):
        hold.state = SETTLING
        raise no_quorum("release", policy, hold, ballot, policy.clock.now() - started_ns)
    return False


def lost_before(policy: Policy, hold: Hold, ballot: Ballot, late: bool, elapsed_ns: int) -> LockLost:
    """Return the error of an extension or a release that found the lock lost; `late` says that it ran out."""
    return loss(RAN_OUT if late else FORGOTTEN, hold, elapsed_ns, _causes(policy, ballot, elapsed_ns))


def no_quorum(
    what: str, policy: Policy, hold: Hold, ballot: Ballot, waited_ns: int, elapsed_ns: int = 0
) -> QuorumUnavailable:
    """Return the error of a ballot without a verdict; elapsed_ns is of the whole call, where that is more."""
    silent = 0 if ballot.decided else ballot.size - ballot.yes - ballot.no - ballot.failed
    told = [f"{ballot.failed} failed"] if ballot.failed else []
    told += [f"{silent} did not answer within {waited_ns / SECOND:.3f} s"] if silent else []
    return QuorumUnavailable(
        f"{what} of {hold.name!r}: of {policy.size} masters {' and '.join(told)}; {policy.quorum} must agree",
        name=hold.name,
        elapsed=max(elapsed_ns, waited_ns) / SECOND,
        causes=_causes(policy, ballot, waited_ns),
    )


def loss(why: str, hold: Hold, elapsed_ns: int = 0, causes: dict[str, BaseException] | None = None) -> LockLost:
    """Return the error that says why a lock was lost."""
    text = f"{hold.name!r} was lost: {why}"
    return LockLost(text, name=hold.name, elapsed=elapsed_ns / SECOND, causes=causes, reason=why)


def _causes(policy: Policy, ballot: Ballot, waited_ns: int) -> dict[str, BaseException]:
    """Name the masters that failed, each with its reason, and those that were silent."""
    causes = dict(ballot.causes or {})
    for index in ballot.silent:
        causes[index] = TimeoutError(f"no answer within {waited_ns / SECOND:.3f} s")
    return {policy.masters[index]: cause for index, cause in sorted(causes.items())}
