"""The compiled build of the hot modules, by the names they have in `redlatch`.

`redlatch._c.wire.engine.fleet` is `redlatch/wire/engine/fleet.py` compiled as it stands, and so on (setup.py lists
them). A hot module imports its hot siblings relatively, so that each build gets its own, and everything else
absolutely, so that both builds share it.

All modules are in one shared library: with one for each, the wheel would be a fifth larger. Python's finders look for
one file for each module, so this package has its own finder.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

_PACKAGES = frozenset(
    f"{__name__}.{name}"
    for name in ("drivers", "locks", "quorum", "quorum.kinds", "quorum.waiting", "votes", "wire", "wire.engine")
)


class _Finder:
    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        if name in _PACKAGES:
            return ModuleSpec(name, None, is_package=True)
        return spec_from_file_location(name, self._library, loader=ExtensionFileLoader(name, self._library))


def _install() -> None:
    found = PathFinder.find_spec(f"{__name__}._library", __path__)
    # From now on the finder of files finds nothing here: there may be files of an older build.
    __path__.clear()
    if found is not None and found.origin is not None:
        sys.meta_path.append(_Finder(found.origin))


_install()
