"""Start helper threads: no other module does.

In CPython 3.11 a new thread has the identity of its starter for a moment. An exception that is set into the starter
meanwhile (`PyThreadState_SetAsyncExc`, as for the time limit of a dramatiq task) is raised in the new thread at its
first bytecode, where no `try` catches it. So a thread reports that it runs, and is started again if it does not.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import Any

# Seconds until a thread that has not reported is started again. The pause doubles up to the longest.
FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 1.0


class _Helper:
    def __init__(self, name: str, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._name = name
        self._work = work
        self._args = args
        self._unclaimed = [None]
        self.runs = _thread.allocate_lock()
        self.runs.acquire()

    def __repr__(self) -> str:
        return f"<{self._name}: {self._work!r}>"

    def run(self) -> None:
        if claim(self._unclaimed):
            self.runs.release()
            _name_thread(self._name)
            self._work(*self._args)


def start_thread(name: str, work: Callable[..., object], *args: Any) -> None:
    """Run a function in a thread of its own; return when the thread runs.

    After an interrupt, the thread may run or not. So the caller must be able to repeat the call.

    Args:
        name: the thread's name after "redlatch-": 6 bytes at most.

    Raises:
        RuntimeError: no thread can start.
    """
    helper, patience = _Helper(name, work, args), FIRST_PATIENCE
    while True:
        # Not threading.Thread: its start() waits on an Event without a limit, and Ctrl-C may leave the Event locked.
        _thread.start_new_thread(helper.run, ())
        if helper.runs.acquire(timeout=patience):
            return
        if sys.is_finalizing():
            raise RuntimeError("no thread starts any more: the interpreter ends")
        patience = min(2 * patience, LONGEST_PATIENCE)


def claim(unclaimed: list[None]) -> bool:
    """Return True in exactly one of the threads that call this with the same list."""
    try:
        unclaimed.pop()
    except IndexError:
        return False
    return True


def _name_thread(name: str) -> None:
    """Name the calling thread for `top -H` and debuggers. Only Linux has the file."""
    try:
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as comm:
            # The kernel keeps 15 bytes.
            comm.write(f"redlatch-{name}")
    except OSError:
        pass
