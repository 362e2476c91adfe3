"""Make a call in a forked child of the test."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable


def in_child(call: Callable[[], object]) -> None:
    """Make a call in a forked child, and fail if it raises or hangs."""
    with warnings.catch_warnings():
        # Since Python 3.12, a fork in a process with threads warns.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
