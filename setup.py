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
    "protocol.hold",
    "protocol.key",
    "protocol.quorum",
    "protocol.batch",
    "wire.engine",
    "drivers.threads",
    "drivers.deadlines",
    "drivers.verdict",
    "drivers.aio",
)
SOURCES = {name: f"src/redlatch/{name.replace('.', '/')}.py" for name in TEXTS}
SOURCES["wire.net"] = "ext/redlatch/_c/wire/net.pyx"


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

    flags = os.environ.get("REDLATCH_CFLAGS", "").split()
    depends = sorted(glob("ext/**/*.p*", recursive=True))
    return cythonize(
        [
            Extension(f"redlatch._c.{name}", [source], depends=depends, extra_compile_args=flags)
            for name, source in SOURCES.items()
        ],
        build_dir="build/cython",
        force=True,  # it does not see that these texts depend on the .pxd files of another folder
        include_path=["ext"],
        # Types come from the .pxd files: annotations are for readers and for mypy, but in protocol/quorum.py.
        compiler_directives={
            "language_level": 3,
            "binding": True,
            "embedsignature": False,
            "annotation_typing": False,
        },
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
