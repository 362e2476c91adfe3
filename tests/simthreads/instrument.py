"""Imports the pure build with a gate at each point where CPython could switch threads, and with `fakes`."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

# The instrumented modules: all that run in several threads.
CLIENT = "redlatch.client"
PACKAGES = tuple(f"redlatch.{package}." for package in ("drivers", "votes", "quorum", "guard", "wire", "locks"))
LEFT_OUT = ("redlatch.drivers.aio",)

# Modules with state that threads share: a switch here finds more than a switch in the engine.
HOT = (
    "redlatch.drivers.background",
    "redlatch.drivers.followers",
    "redlatch.drivers.leader",
    "redlatch.drivers.sleeper",
    "redlatch.drivers.threads",
    "redlatch.drivers.wake_chain",
    "redlatch.quorum.claim",
    "redlatch.quorum.hold",
    "redlatch.quorum.upkeep",
    "redlatch.quorum.upkeep_schedule",
    "redlatch.quorum.waiting.queues",
)

GATES = "redlatch.drivers.simulated"

# Functions that inspect their caller's frame; their calls get no gate.
_LOOK_AT_FRAMES = {"super", "locals", "_getframe"}

_MOST_ARGUMENTS = 3
_GATES = ("enter", "hot", "value", "call0", "call1", "call2", "call3", "calln")


class _Gates(ast.NodeTransformer):
    """Puts gates into the bodies of functions, and changes nothing else."""

    def __init__(self, faked: frozenset[str], begin: str) -> None:
        self._faked = faked
        self._begin = begin
        self._inside = 0  # how many functions are around this node
        self._loops: list[str] = []  # from the outermost loop: its flag if it has a condition, else ""
        self._flags = 0

    def visit_Import(self, node: ast.Import) -> Any:
        """Drop imports of replaced modules; the loader adds the replacements."""
        node.names = [alias for alias in node.names if alias.name not in self._faked]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Take names from the replacements, too."""
        if node.level or node.module not in self._faked:
            return node
        taken = ", ".join(alias.asname or alias.name for alias in node.names)
        values = ", ".join(f"{node.module}.{alias.name}" for alias in node.names)
        return [ast.copy_location(made, node) for made in ast.parse(f"[{taken}] = [{values}]").body]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node  # simulated threads run no coroutines

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        loops, self._loops = self._loops, []
        self._inside += 1
        first = bool(ast.get_docstring(node, clean=False))
        body = [made for statement in node.body[first:] for made in _several(self.visit(statement))]
        node.body = [*node.body[:first], _gate(self._begin), *body]
        self._inside -= 1
        self._loops = loops
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.body = _call("value", [self.visit(node.body)])
        return node

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        node.body = [*self._body(node.body, ""), _gate("enter")]
        node.orelse = [made for statement in node.orelse for made in _several(self.visit(statement))]
        return node

    def visit_While(self, node: ast.While) -> Any:
        """Put the point of a loop with a condition after the condition, from the second pass on."""
        node.test = self.visit(node.test)
        if isinstance(node.test, ast.Constant):
            node.body = [*self._body(node.body, ""), _gate("enter")]
            return node
        self._flags += 1
        flag = f"__sim_again_{self._flags}__"
        again = ast.If(ast.Name(flag, ast.Load()), [_gate("enter")], [])
        node.body = [again, _set(flag, True), *self._body(node.body, flag)]
        node.orelse = [made for statement in node.orelse for made in _several(self.visit(statement))]
        return [_set(flag, False), node]

    def visit_Continue(self, node: ast.Continue) -> Any:
        """Put the point of a `continue` before the condition, not after it."""
        flag = self._loops[-1]
        return [*([_set(flag, False)] if flag else []), _gate("enter"), node]

    def _body(self, statements: list[ast.stmt], flag: str) -> list[ast.stmt]:
        self._loops.append(flag)
        body = [made for statement in statements for made in _several(self.visit(statement))]
        self._loops.pop()
        return body

    def visit_Call(self, node: ast.Call) -> Any:
        if not self._inside:
            return node
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        self.generic_visit(node)
        if name in _LOOK_AT_FRAMES:
            return node
        starred = [argument for argument in node.args if isinstance(argument, ast.Starred)]
        if starred or any(keyword.arg is None for keyword in node.keywords):
            return _call("value", [node])
        many = "n" if node.keywords or len(node.args) > _MOST_ARGUMENTS else len(node.args)
        return _call(f"call{many}", [node.func, *node.args], node.keywords)

    def visit_Yield(self, node: ast.Yield) -> Any:
        self.generic_visit(node)
        return _call("value", [node])

    def _comprehension(self, node: Any) -> Any:
        self.generic_visit(node)
        if self._inside:
            node.elt = _call("value", [node.elt])
        return node

    visit_ListComp = visit_SetComp = visit_GeneratorExp = _comprehension


def _several(made: Any) -> list[Any]:
    return made if isinstance(made, list) else [] if made is None else [made]


def _call(gate: str, args: list[ast.expr], keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(f"__sim_{gate}__", ast.Load()), args, list(keywords))


def _gate(gate: str) -> ast.stmt:
    return ast.Expr(_call(gate, []))


def _set(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))


def instrumented(source: str | bytes, path: str, faked: frozenset[str], begin: str = "enter") -> CodeType:
    """Compile source with gates; `begin` is the gate at the start of functions."""
    tree = _Gates(faked, begin).visit(ast.parse(source, path))
    return compile(_placed(tree), path, "exec", dont_inherit=True)


def _placed(tree: ast.AST) -> Any:
    """Give each inserted node the line number of its surroundings."""

    def place(node: ast.AST, line: int) -> None:
        if "lineno" in node._attributes:
            line = getattr(node, "lineno", line)
            node.lineno = line  # type: ignore[attr-defined]
            node.end_lineno = getattr(node, "end_lineno", None) or line  # type: ignore[attr-defined]
            node.col_offset = getattr(node, "col_offset", 0)  # type: ignore[attr-defined]
            node.end_col_offset = getattr(node, "end_col_offset", None) or 0  # type: ignore[attr-defined]
        previous = line
        for child in ast.iter_child_nodes(node):
            place(child, previous)
            previous = getattr(child, "lineno", previous)

    place(tree, 1)
    return tree


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with gates."""

    def __init__(self, name: str, path: str, names: dict[str, Any], faked: frozenset[str]) -> None:
        super().__init__(name, path)
        self._names = names
        self._faked = faked

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return instrumented(self.get_data(path), path, self._faked, "hot" if fullname in HOT else "enter")

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to load with gates."""

    def __init__(self, gates: ModuleType, fakes: dict[str, Any]) -> None:
        self._gates = {f"__sim_{name}__": getattr(gates, name) for name in _GATES}
        self._fakes = fakes
        self._own = {name: fakes[name] for name in fakes}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if (fullname != CLIENT and not fullname.startswith(PACKAGES)) or fullname.startswith(LEFT_OUT):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            names = self._gates | self._own
            spec.loader = _Loader(fullname, spec.loader.path, names, frozenset(self._own))
        return spec


def load_gates() -> ModuleType:
    """Run `gates` under a name inside the package, and return it."""
    path = Path(__file__).with_name("gates.py")
    module = ModuleType(GATES)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(module))
    return module


def install(gates: ModuleType, fakes: dict[str, Any]) -> None:
    """Instrument all imports of the pure build from now on.

    Args:
        gates: the module that `load_gates` has returned.
        fakes: replacements for modules of the standard library, by name.
    """
    if "redlatch" in sys.modules:
        raise RuntimeError("redlatch is imported already; instrument it in a process of its own")
    os.environ["REDLATCH_IMPL"] = "python"
    sys.meta_path.insert(0, _Finder(gates, fakes))


def simulated_events(gates: ModuleType, names: dict[str, Any]) -> dict[str, Any]:
    """Return threading's own Condition and Event, with gates and with simulated locks.

    Args:
        names: replacements for globals of their module.
    """
    source = "\n\n".join(inspect.getsource(kind) for kind in (threading.Condition, threading.Event))
    begin = {f"__sim_{name}__": getattr(gates, name) for name in _GATES}
    namespace = vars(threading) | begin | names | {"__name__": "threading"}
    exec(instrumented(source, threading.__file__, frozenset()), namespace)
    return namespace


class Globals:
    """The dicts, lists and sets of the package's modules, which every schedule must find as they were at import.

    They are caches: globals, or fields of objects that are globals.
    """

    def __init__(self) -> None:
        found: list[Any] = []
        for name, module in sorted(sys.modules.items()):
            if name == CLIENT or name.startswith(PACKAGES):
                for word, value in sorted(vars(module).items()):
                    if not word.startswith("__"):
                        found += [value, *_fields(value)]
        self._kept = [(value, value.copy()) for value in found if type(value) in (dict, list, set)]

    def restore(self) -> None:
        """Restore their contents at import."""
        for value, kept in self._kept:
            value.clear()
            value.extend(kept) if isinstance(value, list) else value.update(kept)


def _fields(value: Any) -> list[Any]:
    """Return the fields of an object of one of the package's classes."""
    if not type(value).__module__.startswith("redlatch."):
        return []
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
    return [getattr(value, name, None) for name in names]
