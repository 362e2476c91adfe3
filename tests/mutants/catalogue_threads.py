"""Mutants of the thread driver, its background thread, and the hand-off; `tests.simthreads` finds them."""

from __future__ import annotations

from functools import partial

from .catalogue import CONTENTION, ENGINE, HOLD, LOCK, OUTCOME, POLICY, QUORUM, RELEASE, SCHEDULE, WAITING, Mutant

DRIVER, BACKGROUND = "drivers/threads.py", "drivers/background.py"
LEADER, FOLLOWERS, CLOSING = "drivers/leader.py", "drivers/followers.py", "drivers/closing.py"

_bug = partial(Mutant, threads="any")

THREADS = (
    # --- renewal ---------------------------------------------------------------------------------------------
    _bug(
        "a thread's lock is renewed once",
        "own, found by a reader",
        SCHEDULE,
        "            term.renewing = False\n",
        "",
        threads="caring",
    ),
    # --- what holders hear ---------------------------------------------------------------------------------------
    _bug(
        "a thread's loss reaches no on_lost",
        "row 69",
        LOCK,
        "                on_lost(self, reason)\n",
        "                pass\n",
        threads="caring",
    ),
    _bug(
        "a thread's loss is reported twice",
        "own, issue 39",
        SCHEDULE,
        "            self.lost.append((lock, term, reason))\n",
        "            self.lost.append((lock, term, reason))\n            self.lost.append((lock, term, reason))\n",
        threads="caring",
    ),
    _bug(
        "a thread's loss is counted by each of its finders",
        "own, issue 39",
        "quorum/hold.py",
        "        won_ns = self.won_ns\n        self.won_ns = 0\n",
        "        won_ns = self.won_ns\n",
        threads="caring",
    ),
    _bug(
        "check looks at the event and not at the clock, in a thread",
        "row 72, etcd #19091",
        LOCK,
        "        if self.remaining() <= 0:\n            raise self._loss()\n",
        "        if self._upkeep is not None and self._upkeep.reason is not None:\n            raise self._loss()\n",
        threads="caring",
    ),
    _bug(
        "each no to a release that was sent again is an echo",
        "row 60",
        OUTCOME,
        "    return refusers(doubts, ballot, lease, now_ns).bit_count() <= ballot.size - ballot.quorum\n",
        "    return True\n",
        threads="losing",
    ),
    _bug(
        "another memory is taken for the one that was asked first",
        "row 60",
        POLICY,
        "        return asked_ns >= self._others.get(master, 0) and not self.of(master, asked_ns)\n",
        "        return True\n",
        threads="losing",
    ),
    _bug(
        "a release that began too late is none when it is called again",
        "row 60",
        HOLD,
        "        return self.let_go_ns >= self.lease.deadline_ns, resent\n",
        "        return not resent and now_ns >= self.lease.deadline_ns, resent\n",
        threads="losing",
    ),
    _bug(
        "an unawaited release whose connection breaks reports no loss",
        "row 60",
        ENGINE,
        "            if ballot.released_lock is None:\n                self.fail_vote(link.voter, ballot, cause)\n",
        "            self.fail_vote(link.voter, ballot, cause)\n",
        threads="losing",
    ),
    _bug(
        "a thread's release without waiting tells of no loss",
        "row 60",
        RELEASE,
        "            self._ballot.released_lock = self._released_lock\n",
        "            pass\n",
        threads="losing",
    ),
    # --- the role of driver ----------------------------------------------------------------------------------
    _bug(
        "a leaving driver promotes nobody",
        "lost promotion",
        LEADER,
        "            del self.role[ROLE]\n            self.promote()\n",
        "            del self.role[ROLE]\n",
    ),
    _bug(
        "a sleeper that finds a driver does not wake_leader it",
        "lost wake-up",
        FOLLOWERS,
        "        if not self._chain.ready:\n            self._leader.wake_leader()\n",
        "",
    ),
    _bug(
        "no look into the inbox before the poll",
        "missing re-check",
        LEADER,
        "        elif not self.inbox and not self._arrivals:\n            fleet.pump(timeout_ns)\n",
        "        else:\n            fleet.pump(timeout_ns)\n",
        threads="pushes",
    ),
    _bug(
        "a sleeper is not marked as asleep again",
        "flag not reset",
        FOLLOWERS,
        "        sleeper.asleep = True\n\n    def _withdraw",
        "\n    def _withdraw",
    ),
    _bug(
        "close leaves queued waiters asleep",
        "close",
        CLOSING,
        "        for awaited in self._queues.everybody():\n            if awaited.waiter is not None:\n"
        "                awaited.waiter.wake()\n",
        "        pass\n",
        threads="closing",
    ),
    _bug(
        "a thread that ends its call does not wake called waiters",
        "lost wake-up",
        DRIVER,
        "                self._watchers.wait(self._connections.is_closing, effect.until_ns)\n        if called:\n"
        "            self._leader.wake_called()\n        if not isinstance(steps, Call):\n",
        "                self._watchers.wait(self._connections.is_closing, effect.until_ns)\n        if not isinstance(steps, Call):\n",
        threads="waiting",
    ),
    # --- the background thread ----------------------------------------------------------------------------------
    _bug(
        "two background threads may be started",
        "look before instead of after",
        "wire/helper_threads.py",
        "    try:\n        unclaimed.pop()\n    except IndexError:\n        return False\n    return True\n",
        "    if len(unclaimed) == 0:\n        return False\n    unclaimed.clear()\n    return True\n",
        threads="starting",
    ),
    # --- the hand-off ------------------------------------------------------------------------------------------
    _bug(
        "a turn may join a line that was dissolved",
        "missing re-check",
        WAITING,
        r"(?ms)^            if self\.by_key\.get\(hold\.key\) is queue:[^\n]*\n                return\n",
        "            return\n",
    ),
    _bug(
        "a lease given to an abandoned turn stays there",
        "missing re-check",
        WAITING,
        r"(?ms)^            if entry\.left and entry\.lease is not None:[^\n]*\n",
        "            if False:\n",
        threads="waiting",
    ),
    # --- one holder of a hold, tokens ----------------------------------------------------------------------------
    _bug(
        "two threads may take one token",
        "look before instead of after",
        QUORUM,
        "            try:\n                return self._stock.pop()\n            except IndexError:\n"
        "                self._stock.extend(self._draw())\n",
        "            if not self._stock:\n                self._stock.extend(self._draw())\n"
        "            token = min(self._stock)\n            if token in self._stock:\n"
        "                self._stock.remove(token)\n            return token\n",
    ),
    _bug(
        "an interrupted acquire leaves its key",
        "interrupt",
        HOLD,
        "        return command if self._to_undoing(ticket) else None",
        "        self._to_undoing(ticket)\n        return None",
        threads="interrupts",
    ),
    _bug(
        "an interrupt leaves a turn in line",
        "interrupt",
        CONTENTION,
        "        try:\n            quorum.queues.join(quorum, entry, now)\n",
        "        quorum.queues.join(quorum, entry, now)\n        try:\n",
        threads="queueing",
    ),
)
