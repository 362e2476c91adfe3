"""Generate the modules of the face for threads from those for asyncio; `make faces` runs this.

The modules for asyncio are the source. The tables below have the words and the texts in which threads differ. Where the
faces differ in more, each has a function or a class of its own.

    python tests/support/threads_face.py [--check]

Args:
    --check: change nothing; fail if a generated module is not up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/redlatch"

# Each source and what is generated from it.
MODULES = {
    "aio.py": "client.py",
    "sql/aio.py": "sql/client.py",
    "compat/pottery/aio.py": "compat/pottery/threads.py",
    "testing/memory/aio.py": "testing/memory/threads.py",
    **{f"locks/task_{name}.py": f"locks/thread_{name}.py" for name in ("condition", "latch", "multi")},
}

FIRST_LINE = "# Generated from {source} by tests/support/threads_face.py: change the source, and run `make faces`.\n"

# Replaced in a source before the words, each exactly once. Between two words there may be any space.
TEXTS = {
    "aio.py": [
        ("import running_task", "import of_threads"),
        ("self._kind_of, running_task)", "self._kind_of, of_threads())"),
        ('impl.for_clients().module("drivers.aio")', "impl.for_clients()"),
        ("for any number of tasks of one event loop.", "for any number of threads."),
        ("used in another loop or a forked child.", "used in a forked child."),
        (
            """called with the lock and the reason, in the event loop, when a lock is lost. It may be a coroutine
            function, which the loop awaits in a task of its own. Default: a warning in the log, for locks with
            `auto_renew`, for locks whose `lost` was used, and for releases without waiting.""",
            """called with the lock and the reason, in a thread of the client, when a lock is lost. Default: a warning
            in the log, for locks with `auto_renew`, for locks whose `lost` was used, and for releases without
            waiting.""",
        ),
        (
            "At least 0.001. Default: no limit. Raises:",
            """At least
            0.001. Default: no limit.
        gil_patience: how long a thread of the compiled build keeps the GIL while it waits for replies, in seconds. It
            keeps the GIL only while no other thread uses this client and another thread computes: then releasing the
            GIL costs 5 ms each time. Default: about the usual time of a reply, or 0 if that is more than 0.5 ms.
            0: never.

    Raises:""",
        ),
        (
            """called with the lock and the reason, in the event loop, when the lock is lost. It may be a
                coroutine function. Default: the `on_lost` of the client.
            cancel_on_loss: whether a loss of the lock cancels the body of the ``async with``, which then raises
                `LockLost`. Default False.""",
            """called with the lock and the reason, in a thread of the client, when the lock is lost. Default: the
                `on_lost` of the client.""",
        ),
    ],
    "sql/aio.py": [
        ("import asyncio", "import time"),
        ("from redlatch import aio", "from redlatch import client"),
        ("(OnDatabase, aio.AsyncClient)", "(OnDatabase, client.Client)"),
        (
            'scripts: Scripts = field(default="auto", init=False)',
            """scripts: Scripts = field(default="auto", init=False)
    # The replies come from a thread of this process, which needs the GIL.
    gil_patience: float | None = field(default=0.0, init=False)""",
        ),
        (
            "await asyncio.to_thread(make_table, self._database, self._settings)",
            "make_table(self._database, self._settings)",
        ),
        ("await asyncio.sleep(pause)", "time.sleep(pause)"),
    ],
    "compat/pottery/aio.py": [
        (
            """def __init__(self, *, key: str, masters: Iterable[Any], **options: Any) -> None:
        super().__init__(key=key, masters=masters, **options)""",
            "",
        ),
        ("from typing import Any\n", "from typing import Any, Literal\n"),
        (") -> None: await self.release()", ") -> Literal[False]:\n        self.release()\n        return False"),
    ],
    "testing/memory/aio.py": [
        ("from redlatch.aio import", "from redlatch.client import"),
        ("An `AsyncClient` without", "A `Client` without"),
        ("errors of an `AsyncClient`.", "errors of a `Client`."),
        (
            """def drop(self) -> None:
        \"\"\"Close the client at once, without an event loop. Locks stay on the masters until their ttl expires.\"\"\"
        self._driver.drop()""",
            "",
        ),
    ],
    "locks/task_multi.py": [
        ("from .owner import", "from threading import get_ident\nfrom .owner import"),
        ("@coroutine_function def acquire", "def acquire"),
        (
            'Coroutine[Any, Any, bool]: """Acquire the lock on all names',
            'bool:\n        """Acquire the lock on all names',
        ),
        ("# Made here: another task may run the coroutine. ticket = TaskTicket()", "ticket = get_ident()"),
        ('@named("AsyncMultiLock.acquire")', ""),
        ("ticket: TaskTicket", "ticket: int"),
    ],
}

# Replaced everywhere, in this order.
WORDS = [
    (r"\bimport asyncio\b", "import threading"),
    (r"\basyncio\.Event\b", "threading.Event"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\basync_locking\b", "locking"),
    (r"\bAsync(?=[A-Z])(?!Engine)", ""),
    (r"\bTask(?=(Memory)?Driver\b|Lock\b)", "Thread"),
    (r"\btask_(lock|condition|latch|multi|driver)\b", r"thread_\1"),
    (r"\bmade_in_this_task\b", "made_in_this_thread"),
    (r"\bask_async\b", "ask"),
    (r"\bAIORedlock\b", "Redlock"),
    (r"\basync_client_of\b", "client_of"),
    (r"\bacquire_async\b", "acquire"),
    (r"\brecovering_task\b", "recovering"),
    (r"\bdrivers\.aio\b", "drivers.threads"),
    (r"\basyncio tasks\b", "threads"),
    (r"\bfor asyncio\b", "for threads"),
    (r"\bcoroutine function\b", "function"),
    (r"\btask(?=s?\b)", "thread"),
]


def threads_face(source: str, text: str) -> str:
    """Return the module for threads.

    Args:
        source: the name of the module for asyncio, in the package.
        text: what is in it.
    """
    for old, new in TEXTS.get(source, ()):
        pattern = r"\s+".join([re.escape(word) for word in old.split()])
        text, count = re.subn(pattern, new.replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"{source}: {count} times, but once is needed: {old}")
    for old, new in WORDS:
        text = re.sub(old, new, text)
    return tidy(FIRST_LINE.format(source=source) + text)


def tidy(text: str) -> str:
    """Remove imports that are not needed, and format the text, as the linters want it."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    for command in (["check", "--select", "F401,I001", "--fix", "--quiet"], ["format"]):
        done = subprocess.run(
            [ruff, *command, "--stdin-filename", str(PACKAGE / "client.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main(check: bool) -> int:
    stale = 0
    for source, generated in MODULES.items():
        made, target = threads_face(source, (PACKAGE / source).read_text()), PACKAGE / generated
        if target.exists() and target.read_text() == made:
            continue
        stale += 1
        if check:
            print(f"src/redlatch/{generated} is not up to date: run `make faces`", file=sys.stderr)
        else:
            target.write_text(made)
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
