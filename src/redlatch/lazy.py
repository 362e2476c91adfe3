"""Import modules at their first use, and let no process fork meanwhile.

A fork copies the lock of each module that another thread imports, and not that thread. So the child would wait for the
lock indefinitely when it imports the module.
"""

from __future__ import annotations

import _thread

# It registers handlers of forks, as `logging` does, which it imports. If a thread imported them while a fork waits, the
# fork would call the later ones of these handlers and not the first ones.
import concurrent.futures.thread  # noqa: F401
import importlib
import os
from types import ModuleType

# A module that is imported may import others in this way, and may fork.
_importing = _thread.RLock()


def load(name: str, package: str) -> ModuleType:
    """Import a module; the name may be relative to the package. A fork in another thread waits for the end."""
    with _importing:
        return importlib.import_module(name, package)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )
