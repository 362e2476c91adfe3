"""The house rules that can be read off the source: imports between layers, sizes, and places of unit tests."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.importing import Importer

import redlatch
from redlatch import impl

ROOT = Path(__file__).parents[1]
PACKAGE = Path(redlatch.__file__).parent

# From the bottom to the top. A module imports from its own unit and from lower layers, never from a neighbour.
LAYERS = (
    {"holder", "lazy", "loss"},
    {"errors", "health", "impl", "stats"},
    {"config", "masters", "votes"},
    {"wire", "quorum", "guard"},
    {"options"},
    {"drivers", "locks"},
    {"client", "aio", "transactions"},
    {"redlatch"},
    {"testing", "arguments"},
    {
        "compat",
        "demo",
        "metrics",
        "operate",
        "run",
        "sql",
        "fence",
        "sqlalchemy",
        "fastapi",
        "dramatiq",
        "celery",
    },
    {"django"},
    {"cli"},
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}

MODULES = {
    ".".join(("redlatch", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
HOT = sorted(
    {
        ".".join(path.relative_to(ROOT / "ext/redlatch/_c").with_suffix("").parts)
        for path in (ROOT / "ext").rglob("*.p[xy][dx]")
    }
)
COMPILED = [f"redlatch._c.{name}" for name in HOT]

# The modules whose text both builds share, or that are compiled from it.
WRITTEN = [name for name in MODULES if not name.startswith("redlatch._c")]


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(MODULES[module].read_text())


@functools.cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """Return all imports in a module's text with absolute names: (name, level of the import as written)."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = []
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                found.append((whole if whole in MODULES else origin, node.level))
    return found


def ours(module: str) -> list[tuple[str, int]]:
    """Return the imports of redlatch in a module."""
    return [(name, level) for name, level in imports_of(module) if name.partition(".")[0] == "redlatch"]


def unit_of(module: str) -> str:
    """Return the unit to which a module belongs: its first name below `redlatch`."""
    return [*module.split("."), "redlatch"][1]


def units_in(module: str) -> set[str]:
    """Return the units that a module imports."""
    return {unit_of(name) for name, _ in ours(module)}


def test_every_unit_has_a_layer() -> None:
    assert {unit_of(module) for module in WRITTEN} == set(LEVEL)


def test_imports_point_down_only() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module in WRITTEN
        # The package loads its public names, from any layer, at their first use.
        if module != "redlatch"
        for imported, _ in ours(module)
        if unit_of(imported) != unit_of(module) and LEVEL[unit_of(imported)] >= LEVEL[unit_of(module)]
    ]
    assert not wrong


def test_nothing_imports_compat_but_the_locks_of_caches() -> None:
    # The lock of a Django cache has the interface of redis-py's lock, and is its drop-in.
    users = {unit_of(module) for module in WRITTEN if "compat" in units_in(module)}
    assert users == {"compat", "django"}


def test_wire_never_imports_locks() -> None:
    upper = {"locks", "drivers", "client", "aio"}
    assert not [name for name in WRITTEN if unit_of(name) == "wire" and units_in(name) & upper]


_ENGINE = ("fleet", "horizon", "link", "net", "redirects", "replication", "replies", "routes", "silence")


def test_the_engine_and_its_system_calls_import_only_commands_and_votes() -> None:
    own = {f"redlatch.wire.engine.{name}" for name in _ENGINE}
    known = own | {f"redlatch.votes.{name}" for name in ("ballot", "commands", "key", "payloads", "units")}
    assert not {name for module in own for name, _ in ours(module)} - known - {"redlatch.errors"}


def test_the_rooms_of_wire_do_not_import_in_a_circle() -> None:
    above = {"engine": ("dial", "bridge"), "bridge": ("dial",)}
    wrong = [
        f"{module} imports {name}"
        for room, others in above.items()
        for module in WRITTEN
        if module.startswith(f"redlatch.wire.{room}")
        for name, _ in ours(module)
        if name.startswith(tuple(f"redlatch.wire.{other}" for other in others))
    ]
    assert not wrong


def test_the_algorithm_imports_neither_network_nor_clock_nor_random() -> None:
    outside = {"socket", "select", "selectors", "ssl", "asyncio", "time", "random", "secrets"}
    wrong = [
        f"{module} imports {name}"
        for module in WRITTEN
        if unit_of(module) in ("votes", "quorum", "guard")
        for name, _ in imports_of(module)
        if name.partition(".")[0] in outside
    ]
    assert not wrong


def test_the_guard_stands_on_votes_only() -> None:
    known = {"errors", "votes", "guard"}
    assert not [name for name in WRITTEN if unit_of(name) == "guard" and units_in(name) - known]


def test_the_two_faces_do_not_import_each_other() -> None:
    for face, other in (("client", "aio"), ("aio", "client")):
        assert not {name for name, _ in ours(f"redlatch.{face}")} & {f"redlatch.{other}", f"redlatch.drivers.{other}"}
    assert "redlatch.drivers.aio" not in {name for name, _ in ours("redlatch.drivers.threads")}
    assert "redlatch.drivers.threads" not in {name for name, _ in ours("redlatch.drivers.aio")}


def test_a_hot_module_imports_hot_siblings_relatively_and_the_rest_of_ours_absolutely() -> None:
    hot = {f"redlatch.{sibling}" for sibling in HOT}
    wrong = [
        f"{module} imports {imported} {'relatively' if level else 'absolutely'}"
        for module in sorted(hot)
        for imported, level in ours(module)
        if bool(level) != (imported in hot)
    ]
    assert not wrong


def test_only_impl_names_the_compiled_package() -> None:
    assert [module for module in WRITTEN if names_compiled(module)] == ["redlatch.impl"]


def names_compiled(module: str) -> bool:
    """Return whether a module names the compiled package, other than in a docstring."""
    tree = tree_of(module)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }
    names = {name for name, _ in imports_of(module)} | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    return any("redlatch._c" in word or word in ("_c", "._c") for word in texts | names)


@pytest.mark.slow("an import of each of 350 modules, which changes with a new dependency only")
def test_a_module_imports_alone_and_without_a_warning() -> None:
    modules = [*MODULES, *COMPILED]
    try:
        impl.load("c")
    except ImportError:
        # Its packages, too, exist only beside the library.
        modules = [module for module in MODULES if not module.startswith("redlatch._c.")]
    imported = {name for module in MODULES for name, _ in imports_of(module)}
    with contextlib.closing(Importer(sorted(name for name in imported if name.partition(".")[0] != "redlatch"))) as one:
        wrong = {module: stderr for module in modules if (stderr := one.stderr_of(module))}
    assert not wrong


def test_importing_redlatch_loads_neither_redis_nor_hiredis_nor_asyncio() -> None:
    program = "import json, sys, redlatch; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    assert "redlatch" in loaded
    assert not {"redis", "hiredis", "asyncio", "ssl", "socket"} & set(loaded)


def test_a_public_name_resolves_and_is_listed() -> None:
    assert not [name for name in redlatch.__all__ if getattr(redlatch, name) is None]
    assert set(redlatch.__all__) <= set(dir(redlatch))


def test_the_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {node.target.id for node in guarded.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert seen | {"__version__"} == set(redlatch.__all__)


def test_a_public_name_is_the_one_of_the_module_it_comes_from() -> None:
    for name, home in redlatch._HOMES.items():
        assert getattr(redlatch, name) is getattr(importlib.import_module(f"redlatch.{home}"), name)


def test_an_unknown_name_is_an_attribute_error_with_the_name() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        redlatch.nonsense  # type: ignore[attr-defined]  # noqa: B018


# --- sizes (CONTRIBUTING.md, Rules) ---------------------------------------------------------------------

# The modules that are smaller than the rule, with the reasons.
SMALL = {
    "redlatch.django.django_redis_cache": "only this module imports django-redis",
    "redlatch.drivers.lifecycle": "only what a compiled driver looks up in every call",
    "redlatch.votes.payloads": "only what also exists as a .pyx",
}


# The modules that are longer than the rule, with the reasons.
LONG = {
    "redlatch.aio": "the docstring of each public call describes all its arguments and errors",
    "redlatch.client": "as redlatch.aio",
    "redlatch.compat.aioredlock": "it has all names of the original, so that one import finds them",
    "redlatch.compat.redis_py": "the sync and the asyncio class differ in more than await",
    "redlatch.drivers.aio": "it has all callbacks of the loop",
    "redlatch.locks.reentrant": "the sync and the asyncio lock are compared line by line",
    "redlatch.quorum.waiting.queues": "the order of its steps is one argument",
    "redlatch.testing.embedded": "one process starts, watches and ends the servers",
    "redlatch.testing.memory.keyspace": "it is the only list of the commands that a master in memory knows",
    "redlatch.votes.commands": "it is the only list of commands",
    "redlatch.votes.family_scripts": "the scripts of one kind share their keys",
    "redlatch.wire.engine.fleet": "the order of its steps is one argument: each must bear an interrupt",
}

# The functions that are longer than the rule, with the reasons.
LONG_FUNCTIONS = {
    "redlatch.django.atomic.atomic": "its docstring describes all its arguments",
    "redlatch.quorum.batch._try_each": "one whole attempt, whose steps share its times",
    "redlatch.quorum.extend.extend": "one whole extension, whose steps share the ballot and the deadlines",
    "redlatch.quorum.waiting.queues.hand_off": "no call may come between the check of the head and the first append",
    "redlatch.wire.engine.fleet._feed": "its loop counts the usual reply without a call",
}


def test_a_module_has_40_to_350_lines_or_a_reason() -> None:
    lines = {module: MODULES[module].read_text().count("\n") for module in WRITTEN}
    # Each kind has a module, and some are nearly the base class.
    small = {
        module
        for module, count in lines.items()
        if count < 40 and MODULES[module].name != "__init__.py" and ".quorum.kinds." not in module
    }
    assert small == set(SMALL)
    assert {module for module, count in lines.items() if count > 350} == set(LONG)


def test_a_function_has_at_most_40_lines_or_a_reason() -> None:
    # A list, because two functions of a module may have the same name.
    long = [
        f"{module}.{node.name}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 40
    ]
    assert sorted(long) == sorted(LONG_FUNCTIONS)


# --- places of unit tests ----------------------------------------------------------------------------

TESTS = Path(__file__).parent
TESTED = ("masters", "votes", "quorum", "guard", "wire", "drivers", "locks", "sql")
UNIT_TESTS = [path.relative_to(TESTS) for layer in TESTED for path in sorted((TESTS / layer).rglob("test_*.py"))]
SOURCES = [
    path.relative_to(PACKAGE)
    for layer in TESTED
    for path in sorted((PACKAGE / layer).rglob("*.py"))
    if path.name != "__init__.py"
]

# The files of unit tests that stand for no single module, with the reasons.
WITHOUT_MODULE = {
    "guard/test_single_master.py": "the table of a single master and its actions together",
    "guard/test_horizon.py": "a horizon is of the marker, the state and the actions together",
    "sql/test_failures.py": "attacks on whole clients on real databases",
    "sql/test_locks.py": "whole clients on real databases, as ShedLock's integration tests",
    "sql/test_poolers.py": "whole clients behind a pooler, beside an application",
    "sql/test_sqlite.py": "whole clients on files that are replaced or locked",
    "quorum/waiting/test_races.py": "a race is between several modules: queues, watches and holds",
    "wire/engine/test_repairs.py": "the engine and the extension decide about a repair together",
}


def test_a_file_of_unit_tests_stands_for_one_module() -> None:
    without = {
        path.as_posix()
        for path in UNIT_TESTS
        if not (PACKAGE / path.with_name(path.name.removeprefix("test_"))).is_file()
    }
    assert without == set(WITHOUT_MODULE)


# The modules without a file of unit tests, with the reasons.
WITHOUT_TESTS = {
    "drivers/base.py": "the constructor of both drivers, which every test of a driver runs",
    "quorum/effects.py": "three classes of one field each, which every test of a generator reads",
    **{
        f"locks/{face}_{name}.py": f"tests/locks/test_{name}.py runs both faces"
        for face in ("task", "thread")
        for name in ("condition", "latch", "multi")
    },
}


def test_a_module_has_its_own_file_of_unit_tests_or_a_reason() -> None:
    without = {path.as_posix() for path in SOURCES if not (TESTS / path.with_name(f"test_{path.name}")).is_file()}
    assert without == set(WITHOUT_TESTS)
