"""The mutants of the driver for threads, its janitor and warden, and the hand-off; found by `tests.simthreads`."""

from __future__ import annotations

from functools import partial

from .catalogue import HOLD, POLICY, WAITING, Mutant

DRIVER, JANITOR, WARDEN, SLEEPER = "drivers/threads.py", "drivers/janitor.py", "drivers/warden.py", "drivers/sleeper.py"

_bug = partial(Mutant, threads="any")

THREADS = (
    # --- the role of driver ----------------------------------------------------------------------------------
    _bug(
        "a leaving driver promotes nobody",
        "lost promotion",
        DRIVER,
        "            del self._role[_ROLE]\n            self._promote()\n",
        "            del self._role[_ROLE]\n",
    ),
    _bug(
        "a sleeper enters the queue behind its last try for the role",
        "look before instead of after",
        DRIVER,
        "            self._sleepers.append(sleeper)\n            try:\n"
        "                if self._role.setdefault(_ROLE, me) == me:\n"
        "                    self._drive(ballot, None)\n                    return\n            finally:\n"
        "                if self._role.get(_ROLE) == me:\n                    self._leave()\n",
        "            try:\n"
        "                if self._role.setdefault(_ROLE, me) == me:\n"
        "                    self._drive(ballot, None)\n                    return\n            finally:\n"
        "                if self._role.get(_ROLE) == me:\n                    self._leave()\n"
        "            self._sleepers.append(sleeper)\n",
        threads="pushes",
    ),
    _bug(
        "a leaving driver does not look into the inbox",
        "inbox not looked at when leaving",
        DRIVER,
        "        if self._inbox or self._arrivals:\n            self._serve()\n",
        "        if self._arrivals:\n            self._serve()\n",
        threads="pushes",
    ),
    _bug(
        "who enqueues does not wake the poll",
        "lost wake-up",
        DRIVER,
        "        if self._polling:\n            self._fleet.wires.wake()\n\n    def tidy",
        "\n    def tidy",
        threads="pushes",
    ),
    _bug(
        "a sleeper that finds a driver does not rouse it",
        "lost wake-up",
        DRIVER,
        "            other = self._next_if_mine() if self._ready else None\n            if not self._ready:\n"
        "                self._rouse()\n            sleeper.sleep(_LAST_LOOK_NS if last_look else left, other)\n",
        "            other = self._next_if_mine() if self._ready else None\n"
        "            sleeper.sleep(_LAST_LOOK_NS if last_look else left, other)\n",
    ),
    _bug(
        "no look into the inbox before the poll",
        "missing re-check",
        DRIVER,
        "        elif not self._inbox and not self._arrivals:\n            fleet.pump(timeout_ns)\n",
        "        else:\n            fleet.pump(timeout_ns)\n",
        threads="pushes",
    ),
    _bug(
        "a sleeper is not marked as asleep again",
        "flag not reset",
        DRIVER,
        "            sleeper.asleep = True  # before `decided` is looked at again, so that no verdict goes unheard\n",
        "",
    ),
    _bug(
        "whoever is decided is forgotten before it is woken",
        "interrupt loses a verdict",
        DRIVER,
        "                sleeper = fleet.decided[-1].waiter\n                sleeper.decided = True\n"
        "                self._ready.append(sleeper)\n                fleet.decided.pop()\n",
        "                sleeper = fleet.decided.pop().waiter\n                sleeper.decided = True\n"
        "                self._ready.append(sleeper)\n",
        threads="interrupts",
    ),
    _bug(
        "close leaves those who wait in a line asleep",
        "close",
        DRIVER,
        "        for ballot in self.lines.everybody():\n            if ballot.waiter is not None:\n"
        "                ballot.waiter.wake()\n",
        "        pass\n",
        threads="closing",
    ),
    _bug(
        "a thread that ends its call wakes nobody whose turn has come",
        "lost wake-up",
        DRIVER,
        "                self._watch(self._roster.is_closing, effect.until_ns)\n        if called:\n"
        "            self._wake_called()\n        return None\n",
        "                self._watch(self._roster.is_closing, effect.until_ns)\n        return None\n",
        threads="waiting",
    ),
    _bug(
        "a wait in a line is not marked as asleep again",
        "flag not reset",
        DRIVER,
        "                sleeper.sleep(left, other)\n                sleeper.asleep = True\n",
        "                sleeper.sleep(left, other)\n",
        threads="waiting",
    ),
    _bug(
        "a driver that leaves wakes none of those who are decided",
        "a withdraw that wakes nobody",
        DRIVER,
        "        self._wake_next()  # with nobody to drive, each passes it on when it leaves\n",
        "",
        threads="waiting",
    ),
    _bug(
        "a driver rests until the last of them has come",
        "a withdraw that wakes nobody",
        DRIVER,
        "                    self._apart_ns = now + APART_NS\n                    self._wake_all()\n",
        "                    self._apart_ns = now + APART_NS\n",
        threads="waiting",
    ),
    _bug(
        "an interrupted waiter keeps its place",
        "interrupt",
        DRIVER,
        "                    self.leave_line(hold)\n            raise\n        return hold.state == HELD\n",
        "                    pass\n            raise\n        return hold.state == HELD\n",
        threads="interrupts",
    ),
    # --- janitor, warden, sleeper ------------------------------------------------------------------------------
    _bug(
        "the warden does not look again when it stops",
        "missing re-check",
        WARDEN,
        "            seconds = _attend(reference)\n            if seconds is None or not _take(unstarted):\n"
        "                return\n",
        "            return\n",
        threads="caring",
    ),
    _bug(
        "two wardens may be started",
        "look before instead of after",
        WARDEN,
        "    try:\n        unstarted.pop()\n    except IndexError:\n        return False\n    return True\n",
        "    if len(unstarted) == 0:\n        return False\n    unstarted.pop()\n    return True\n",
    ),
    _bug(
        "a sleeper that is woken twice raises",
        "two who wake one",
        SLEEPER,
        "            except RuntimeError:\n                pass  # a leaving driver and its successor woke it both\n",
        "            except ValueError:\n                pass\n",
    ),
    _bug(
        "a bell that two ring raises",
        "two who ring at once",
        JANITOR,
        "            except RuntimeError:\n                pass  # another thread rang at the same time\n",
        "            except ValueError:\n                pass\n",
    ),
    # --- the hand-off ------------------------------------------------------------------------------------------
    _bug(
        "a turn in a line that was dissolved meanwhile",
        "missing re-check",
        WAITING,
        "            if self.lines.get(hold.key) is line:  # else it was dissolved meanwhile, and nobody will look into it\n"
        "                return turn\n",
        "            return turn\n",
    ),
    _bug(
        "a lease given to a turn that was left stays there",
        "missing re-check",
        WAITING,
        "        if turn.left and turn.take() is not None:  # its owner has left while we gave it, and will not find it\n",
        "        if False:\n",
        threads="waiting",
    ),
    # --- one holder of a hold, tokens ----------------------------------------------------------------------------
    _bug(
        "two threads may take one token",
        "look before instead of after",
        POLICY,
        "            try:\n                return self._stock.pop()\n            except IndexError:\n"
        "                self._stock.extend(self._draw())\n",
        "            if not self._stock:\n                self._stock.extend(self._draw())\n"
        "            token = min(self._stock)\n            self._stock.remove(token)\n            return token\n",
    ),
    _bug(
        "what an interrupted release has sent is not sent again",
        "interrupt",
        HOLD,
        "        self.state = SETTLING\n        return self.releasing()\n",
        "        self.state = SETTLING\n        return None\n",
        threads="interrupts",
    ),
    _bug(
        "an interrupted acquire leaves its key",
        "interrupt",
        HOLD,
        "            return None if nothing else self.releasing()\n",
        "            return None\n",
        threads="interrupts",
    ),
)
