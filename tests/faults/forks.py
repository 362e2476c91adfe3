"""The text that begins the scripts that fork, and the options of the interpreter that runs them."""

from __future__ import annotations

# Since Python 3.12, a fork in a process with threads warns.
IGNORED = ("-W", "error", "-W", "ignore::DeprecationWarning")

IN_CHILD = """
import os, signal, sys, time

def in_child(call):
    # Run a call in a forked child, which must end soon and without an error.
    child = os.fork()
    if child == 0:
        try:
            call()
            code = 0
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            code = 1
        os._exit(code)
    until = time.monotonic() + 20
    while (end := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit("the child hung")
        time.sleep(0.0005)
    if end[1] != 0:
        raise SystemExit(f"the child ended with {end[1]}")
"""
