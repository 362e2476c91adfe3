"""Build the compiled half of redlatch. Everything else is in pyproject.toml.

REDLATCH_BUILD_EXT=1 makes a failed build an error, and =0 skips the build. Without the variable, a failed build leaves
the pure package and prints one warning.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRED = os.environ.get("REDLATCH_BUILD_EXT") == "1"
SKIPPED = os.environ.get("REDLATCH_BUILD_EXT") == "0"
FLAGS = os.environ.get("REDLATCH_CFLAGS", "").split()

# Each module is compiled as redlatch._c.<name>: the Python file as it stands, with the types of its .pxd in ext/.
TEXTS = (
    "votes.ballot",
    "votes.commands",
    "votes.key",
    "votes.units",
    "quorum.acquire",
    "quorum.attempt",
    "quorum.batch",
    "quorum.claim",
    "quorum.calls",
    "quorum.condition",
    "quorum.effects",
    "quorum.extend",
    "quorum.figures",
    "quorum.hold",
    "quorum.inquiry",
    "quorum.latch",
    "quorum.lease",
    "quorum.outcome",
    "quorum.policy",
    "quorum.quorum",
    "quorum.recovery",
    "quorum.release",
    "quorum.repair",
    *[f"quorum.kinds.{Path(path).stem}" for path in sorted(glob("src/redlatch/quorum/kinds/[!_]*.py"))],
    "quorum.waiting.unqueued_holds",
    "quorum.waiting.contention",
    "quorum.waiting.queues",
    "quorum.waiting.watches",
    "wire.engine.link",
    "wire.engine.replies",
    "wire.engine.routes",
    "wire.engine.silence",
    "wire.engine.fleet",
    "drivers.aio",
    "drivers.followers",
    "drivers.leader",
    "drivers.task_futures",
    "drivers.base",
    "drivers.lifecycle",
    "drivers.threads",
    "drivers.wake_chain",
    "locks.core",
)
SOURCES = {name: f"src/redlatch/{name.replace('.', '/')}.py" for name in TEXTS}
# These modules also exist as .pyx files.
for name in ("votes.payloads", "wire.engine.net", "drivers.sleeper"):
    SOURCES[name] = f"ext/redlatch/_c/{name.replace('.', '/')}.pyx"

# Directives for all classes of a module. Cython silently ignores these two directives on a class in a .pxd.
# no_gc: the objects cannot be part of a reference cycle, and there are so many that a search for cycles would be slow.
NO_GC = {"no_gc": True}
FREELIST = {"freelist": 4096}
BOTH = NO_GC | FREELIST
OF_CLASSES = (NO_GC, FREELIST, BOTH)
OF_CLASSES_BY_NAME = {
    "votes.commands": NO_GC,
    "quorum.claim": NO_GC,
    "quorum.hold": NO_GC,
    "votes.ballot": FREELIST,
    "quorum.lease": BOTH,
    "drivers.task_futures": FREELIST,
}


# Half of the instructions of the compiled half are in these modules. The others are compiled for size: that makes the
# wheel smaller by a seventh, and a cycle does not need more instructions.
FAST = {
    "votes.ballot",
    "votes.commands",
    "votes.units",
    "votes.payloads",
    "votes.key",
    "locks.core",
    "quorum.acquire",
    "quorum.attempt",
    "quorum.batch",
    "quorum.claim",
    "quorum.extend",
    "quorum.hold",
    "quorum.release",
    "wire.engine.fleet",
    "wire.engine.link",
    "wire.engine.net",
    "drivers.aio",
    "drivers.leader",
    "drivers.task_futures",
    "drivers.threads",
}

# Cython's own code that all modules need, once for all.
SHARED = "redlatch._c._shared"

# All modules are in one shared library: one library for each module would make the wheel a fifth larger. Python
# initializes a module by the last part of its name, so these parts must differ. The linker checks that.
LIBRARY = "redlatch._c._library"


class OptionalBuild(build_ext):
    """Build the library; if that fails, print one warning of one line."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        try:
            super().run()
        except Exception as error:
            if REQUIRED:
                raise
            # An editable installation copies these files, so there must be none.
            self.extensions = []
            print(
                f"WARNING: redlatch was built without its compiled half and will run slower ({error}); "
                "the compiled half needs a C compiler and Python's headers (Debian: gcc python3-dev)",
                file=sys.stderr,
            )

    def build_extension(self, ext):
        """Compile each module with its own flags, several at a time, and link all of them."""

        def compiled(module):
            options = {"output_dir": self.build_temp, "debug": self.debug, "depends": ext.depends}
            return self.compiler.compile(module.sources, extra_postargs=module.extra_compile_args, **options)

        with ThreadPoolExecutor(self.parallel) as pool:
            objects = [path for paths in pool.map(compiled, translated()) for path in paths]
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            libraries=self.get_libraries(ext),
            extra_postargs=ext.extra_link_args,
            debug=self.debug,
            build_temp=self.build_temp,
            target_lang="c",
        )


def translated():
    """Translate all modules to C; return one Extension for each."""
    from Cython.Build import cythonize
    from Cython.Compiler import Options

    # The compiled modules stand beside their Python files, which have the docstrings. These were 2 % of the wheel.
    Options.docstrings = False
    # Without these defaults, Cython accepts the two directives only for single classes.
    Options.get_directive_defaults().update(no_gc=False, freelist=0)

    # The types come from the .pxd files. Annotations are for readers and mypy, unless a module sets annotation_typing,
    # because a .pxd cannot type the arguments and locals of a generator.
    # Nobody pickles these objects; without auto_pickle each class is smaller.
    common = {"language_level": 3, "binding": True, "embedsignature": False, "annotation_typing": False}
    common |= {"auto_pickle": False, "emit_code_comments": False}

    def extension(name, source, optimize):
        return Extension(name, [source], extra_compile_args=["-g0", optimize, *FLAGS])

    done = []
    for directives in (*OF_CLASSES, {}):
        modules = [
            extension(f"redlatch._c.{name}", source, "-O3" if name in FAST else "-Os")
            for name, source in SOURCES.items()
            if OF_CLASSES_BY_NAME.get(name, {}) == directives
        ]
        if not directives:
            modules.append(extension(SHARED, "redlatch/_c/_shared.c", "-Os"))
        done += cythonize(
            modules,
            build_dir="build/cython",
            # Cython does not see that these modules depend on the .pxd files in another folder.
            force=True,
            include_path=["ext"],
            compiler_directives=common | directives,
            shared_utility_qualified_name=SHARED,
            shared_utility_features_disabled=["MemoryView"],
        )
    return done


def library():
    """Return the library as one Extension. Only its build translates the modules: pip runs this file several times."""
    # A later flag overrides an earlier one: REDLATCH_CFLAGS="-g -O1" is a build for debugging.
    strip = ["-Wl,-s"] if sys.platform == "linux" and not any(flag.startswith("-g") for flag in FLAGS) else []
    depends = sorted(glob("ext/**/*.p*", recursive=True))
    return Extension(LIBRARY, list(SOURCES.values()), depends=depends, extra_link_args=strip)


setup(ext_modules=[] if SKIPPED else [library()], cmdclass={"build_ext": OptionalBuild})
