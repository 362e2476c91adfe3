"""The compiled build of the hot modules, by the names they have in `redlatch`.

`redlatch._c.wire.engine` is `redlatch/wire/engine.py` compiled as it stands, and so on (setup.py lists them). A hot
module imports its hot siblings relatively, so that each build gets its own, and everything else absolutely, so that
both builds share it.

All modules are in one shared library, `_library`. A library for each module would need a quarter more, because each
has its own tables of symbols. Python finds only files by itself, so this package finds the modules in the library.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

_PACKAGES = frozenset(
    f"{__name__}.{name}" for name in ("drivers", "quorum", "quorum.kinds", "quorum.waiting", "votes", "wire")
)


class _Finder:
    """Find the packages and modules of the library.

    Args:
        library: the path of the library.
    """

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module of this package, or None for any other module."""
        if not name.startswith(f"{__name__}."):
            return None
        if name in _PACKAGES:
            return ModuleSpec(name, None, is_package=True)
        return spec_from_file_location(name, self._library, loader=ExtensionFileLoader(name, self._library))


def _install() -> None:
    """Let Python ask the finder, if the library was built for this Python."""
    found = PathFinder.find_spec(f"{__name__}._library", __path__)
    # From now on the finder of files finds nothing here: there may be the files of an older build.
    __path__.clear()
    if found is not None and found.origin is not None:
        sys.meta_path.append(_Finder(found.origin))


_install()
