"""Build the compiled half of redlatch; everything else is in pyproject.toml.

REDLATCH_BUILD_EXT=1 makes a failed build an error, =0 skips it; without it a failed build leaves the pure
package, with one warning.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRED = os.environ.get("REDLATCH_BUILD_EXT") == "1"
SKIPPED = os.environ.get("REDLATCH_BUILD_EXT") == "0"

# Each is compiled as redlatch._c.<name>: the Python text as it stands, with the types of its .pxd in ext/.
TEXTS = (
    "protocol.commands",
    "protocol.ballot",
    "protocol.policy",
    "protocol.lease",
    "protocol.kind",
    "protocol.hold",
    "protocol.key",
    "protocol.waiting",
    "protocol.effects",
    "protocol.outcome",
    "protocol.quorum",
    "protocol.contention",
    "protocol.plain",
    "protocol.turns",
    "protocol.attempt",
    "protocol.acquire",
    "protocol.batch",
    "protocol.family",
    "protocol.fair",
    "protocol.foreign",
    "wire.engine",
    "drivers.threads",
    "drivers.deadlines",
    "drivers.verdict",
    "drivers.aio",
)
SOURCES = {name: f"src/redlatch/{name.replace('.', '/')}.py" for name in TEXTS}
for name in ("wire.net", "drivers.sleeper"):  # these exist twice
    SOURCES[name] = f"ext/redlatch/_c/{name.replace('.', '/')}.pyx"

# Directives for all classes of a text: Cython leaves these out without a word where a .pxd decorates a class with them.
# no_gc: nothing that the objects refer to refers back, and so many are made that looking for cycles would cost.
NO_GC = {"no_gc": True}
FREELIST = {"freelist": 4096}
BOTH = NO_GC | FREELIST
OF_CLASSES = (NO_GC, FREELIST, BOTH)
OF_CLASSES_BY_NAME = {
    "protocol.commands": NO_GC,
    "protocol.hold": NO_GC,
    "protocol.ballot": FREELIST,
    "protocol.lease": BOTH,
    "drivers.verdict": FREELIST,
}


class OptionalBuild(build_ext):
    """Build what can be built; say once, in one line, what could not."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        try:
            super().run()
        except Exception as error:
            if REQUIRED:
                raise
            self.extensions = []  # nothing to copy into an editable install either
            print(
                f"WARNING: redlatch was built without its compiled half and will run slower ({error}); "
                "a C compiler and Python's headers (Debian: gcc python3-dev) are what it needs",
                file=sys.stderr,
            )


def extensions():
    if SKIPPED:
        return []
    from Cython.Build import cythonize
    from Cython.Compiler.Options import get_directive_defaults

    get_directive_defaults().update(no_gc=False, freelist=0)  # else it knows them of single classes only

    flags = os.environ.get("REDLATCH_CFLAGS", "").split()
    depends = sorted(glob("ext/**/*.p*", recursive=True))
    # Types come from the .pxd files: annotations are for readers and for mypy, but where a text says otherwise.
    common = {"language_level": 3, "binding": True, "embedsignature": False, "annotation_typing": False}
    built = []
    for directives in (*OF_CLASSES, {}):
        names = [name for name in SOURCES if OF_CLASSES_BY_NAME.get(name, {}) == directives]
        built += cythonize(
            [
                Extension(f"redlatch._c.{name}", [SOURCES[name]], depends=depends, extra_compile_args=flags)
                for name in names
            ],
            build_dir="build/cython",
            force=True,  # it does not see that these texts depend on the .pxd files of another folder
            include_path=["ext"],
            compiler_directives=common | directives,
        )
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
