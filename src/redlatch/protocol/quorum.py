"""Acquire, extend and release on a quorum, as generators: the algorithm, top to bottom.

A generator yields what it wants done, and goes on when it is:

  Ballot           send its command to every master; done when it is decided, or its time is over
  Tell(command)    send the command to every master; done at once
  Pause(until_ns)  wait

It does no I/O, reads no clock of its own and draws no random number: those come in with the Policy.
One text, twice: it is compiled as `redlatch._c.protocol.quorum` (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from redlatch.errors import AlreadyHeld, LockLost, NotOwned, QuorumUnavailable

from .ballot import Ballot
from .commands import Acquire, Command, Extend, Locked, Owned, Release
from .policy import SECOND, Policy

# What a Hold is doing. SETTLING: a release was sent whose answer is not known.
FREE, ASKING, HELD, SETTLING = range(4)


class Tell:
    """Send `command` to every master and wait for nothing."""

    __slots__ = ("command",)

    def __init__(self, command: Command) -> None:
        self.command = command


class Pause:
    """Wait until `until_ns`."""

    __slots__ = ("until_ns",)

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns


Effect = Ballot | Tell | Pause
Steps = Generator[Effect, None, Any]


class Hold:
    """One holder's claim on one name: the token of its last attempt and until when it may be believed.

    The token is noted here before the first byte with it leaves, so that whoever interrupts an attempt
    at any point can undo it (`abandon`). One Hold is one holder: a second `acquire` while one is under
    way or held is refused, since two holders that share a token would release each other's lock.
    """

    __slots__ = ("_gate", "deadline_ns", "elapsed_ns", "key", "name", "since_ns", "state", "token")

    def __init__(self, name: str | bytes, key: bytes) -> None:
        self.name = name
        self.key = key
        self.state = FREE
        self.token = b""
        self.since_ns = 0
        self.deadline_ns = 0
        self.elapsed_ns = 0
        self._gate = threading.Lock()

    def claim(self) -> None:
        """Reserve this Hold for one acquire, or refuse."""
        if self.state == SETTLING:
            self.free()
        if not self._gate.acquire(blocking=False):
            raise AlreadyHeld(
                f"{self.name!r} is held, or asked for, through this lock object already; "
                "release it first, or take one lock object per holder",
                name=self.name,
            )

    def ask(self, token: bytes, since_ns: int) -> None:
        """Note the token of an attempt that is about to begin."""
        self.token = token
        self.since_ns = since_ns
        self.state = ASKING

    def free(self) -> None:
        """Hold nothing; the gate opens last."""
        self.state = FREE
        self.deadline_ns = 0
        if self._gate.locked():
            self._gate.release()

    def abandon(self) -> Release | None:
        """Give up whatever an interrupted call may have left on the masters.

        Returns:
            The command that undoes it, or None where nothing was sent.
        """
        undo = Release(self.key, self.token, self.since_ns) if self.state != FREE else None
        self.free()
        return undo

    def insist(self) -> Release | None:
        """Settle for an interrupted release: return the command to send again, or None where nothing is held."""
        if self.state not in (HELD, SETTLING):
            return None
        self.state = SETTLING
        return Release(self.key, self.token, self.since_ns)

    def held(self, now_ns: int) -> bool:
        """Tell whether the holder may still believe that the lock is its own."""
        return self.state == HELD and now_ns < self.deadline_ns


def acquire(policy: Policy, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until the lock is won or the time is over.

    Args:
        hold: claimed by the caller; it is HELD or FREE when this returns or raises.
        ttl_ms: the time to live on the masters.
        give_up_ns: when to stop trying; None is never. One attempt is always made.

    Returns:
        Whether it was won.

    Raises:
        QuorumUnavailable: too many masters failed in two attempts running.
    """
    began = policy.clock()
    attempts = failures = 0
    while True:
        ballot = yield from _attempt(policy, hold, ttl_ms)
        if hold.state == HELD:
            return True
        now = policy.clock()
        if ballot.unavailable():
            # Connections that broke under the commands are made anew at once, and what is sent
            # meanwhile waits for them; so a second failure in a row is a verdict, the first is not.
            failures += 1
            if failures == 2 or not ballot.decided:
                hold.free()
                raise _no_quorum("acquire", policy, hold, ballot, now - began)
            continue
        failures = 0
        if give_up_ns is not None and now >= give_up_ns:
            hold.free()
            return False
        wake = now + policy.retry.pause_ns(attempts, policy.random())
        attempts += 1
        yield Pause(wake if give_up_ns is None else min(wake, give_up_ns))


def _attempt(policy: Policy, hold: Hold, ttl_ms: int) -> Steps:
    """Ask every master once, with a new token; keep the lock or undo it on every one of them."""
    started = policy.clock()
    deadline = started + policy.validity_ns(ttl_ms)
    hold.ask(policy.token(), started)
    command = Acquire(hold.key, hold.token, started, ttl_ms)
    ballot = Ballot(command, policy.size, policy.quorum, min(deadline, started + policy.patience_ns(ttl_ms)))
    yield ballot
    won = ballot.yes >= ballot.quorum
    settled = policy.clock()  # after the last counted vote, whatever is counted later
    hold.elapsed_ns = settled - started
    if won and settled < deadline:
        hold.deadline_ns = deadline
        hold.state = HELD
    else:
        yield Tell(Release(hold.key, hold.token, started))
    return ballot


def extend(policy: Policy, hold: Hold, ttl_ms: int) -> Steps:
    """Let the lock live ttl_ms from now; never additive, and never creating a key that is gone.

    Raises:
        NotOwned: nothing is held.
        LockLost: the validity was over before a quorum had answered, or a quorum has forgotten the token.
        QuorumUnavailable: too many masters failed; what was valid before still is.
    """
    if hold.state != HELD:
        raise NotOwned(f"{hold.name!r} is not held; there is nothing to extend", name=hold.name)
    token = hold.token
    started = policy.clock()
    deadline = started + policy.validity_ns(ttl_ms)
    # A shorter ttl may reach some masters whatever the verdict; then the old deadline is too late.
    hold.deadline_ns = limit = min(hold.deadline_ns, deadline)
    command = Extend(hold.key, token, hold.since_ns, ttl_ms)
    for again in (True, False):
        ballot = Ballot(command, policy.size, policy.quorum, min(limit, started + policy.patience_ns(ttl_ms)))
        yield ballot
        won = ballot.yes >= policy.quorum
        settled = policy.clock()
        if hold.token is not token or hold.state != HELD:
            raise NotOwned(f"{hold.name!r} was released while it was extended", name=hold.name)
        if settled >= limit or ballot.refused():
            hold.deadline_ns = min(limit, settled)
            raise _lost("its validity ran out" if settled >= limit else "a quorum has forgotten it", hold)
        if won:
            hold.deadline_ns = deadline
            hold.elapsed_ns = settled - started
            return
        if not (again and ballot.decided):
            raise _no_quorum("extend", policy, hold, ballot, settled - started)


def release(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Delete the key on every master where it is still ours, and wait for a quorum's answer.

    An interrupted release may be called again. The command reaches every master that may hold the key,
    also one whose connection has to be made anew.

    Raises:
        NotOwned: nothing is held.
        LockLost: the validity was over, or a quorum had forgotten the token, before the release.
        QuorumUnavailable: too many masters failed; their keys go when they are back, or with their ttl.
    """
    if hold.state not in (HELD, SETTLING):
        raise NotOwned(f"{hold.name!r} is not held; there is nothing to release", name=hold.name)
    started = policy.clock()
    late = hold.state == HELD and started >= hold.deadline_ns
    resent = hold.state == SETTLING  # then a "no" may be the work of the first try
    hold.state = SETTLING
    command = Release(hold.key, hold.token, hold.since_ns)
    while True:
        ballot = Ballot(command, policy.size, policy.quorum, started + patience_ns)
        yield ballot
        if ballot.unavailable():
            if resent or not ballot.decided:
                raise _no_quorum("release", policy, hold, ballot, policy.clock() - started)
            resent = True
            continue
        forgotten = ballot.refused() and not resent
        hold.free()
        if late:
            raise _lost("its validity ran out", hold)
        if forgotten:
            raise _lost("a quorum has forgotten it", hold)
        return


def locked(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Return whether anybody holds the name: a quorum of masters has a key for it."""
    return _inquire(policy, hold, Locked(hold.key, b"", 0), patience_ns)


def owned(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Return whether this holder still has the lock: by its own clock and on a quorum of masters."""
    if not hold.held(policy.clock()):
        return False
    token = hold.token
    mine = yield from _inquire(policy, hold, Owned(hold.key, token, hold.since_ns), patience_ns)
    return mine and hold.token is token and hold.held(policy.clock())


def _inquire(policy: Policy, hold: Hold, command: Command, patience_ns: int) -> Steps:
    started = policy.clock()
    for again in (True, False):
        ballot = Ballot(command, policy.size, policy.quorum, started + patience_ns)
        yield ballot
        if not ballot.unavailable():
            break
        if not (again and ballot.decided):
            raise _no_quorum("inquiry", policy, hold, ballot, policy.clock() - started)
    return ballot.yes >= policy.quorum


def _no_quorum(what: str, policy: Policy, hold: Hold, ballot: Ballot, elapsed_ns: int) -> QuorumUnavailable:
    causes: dict[str, BaseException] = {
        policy.masters[index]: cause for index, cause in sorted((ballot.causes or {}).items())
    }
    answered = ballot.yes + ballot.no
    return QuorumUnavailable(
        f"{what} of {hold.name!r}: {answered} of {ballot.size} masters answered, {ballot.quorum} must agree"
        + ("" if ballot.decided else f"; the others were silent for {elapsed_ns / SECOND:.3f} s"),
        name=hold.name,
        elapsed=elapsed_ns / SECOND,
        causes=causes,
    )


def _lost(why: str, hold: Hold) -> LockLost:
    return LockLost(f"{hold.name!r} was lost: {why}", name=hold.name)
