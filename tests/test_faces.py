"""Both faces have the same names, signatures and docstrings; both builds have the same names and signatures."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import create_autospec

import pytest
from support.builds import implementation_named
from support.declarations import (
    differences,
    different_parameters,
    is_public,
    of_cython,
    of_python,
    read_cython,
    read_python,
)
from test_layers import HOT

import redlatch
import redlatch.compat.aioredlock
import redlatch.compat.pottery
import redlatch.compat.redis_py
import redlatch.django.locks
import redlatch.sql
import redlatch.testing

WRITTEN_TWICE = {"wire.engine.net", "drivers.sleeper", "votes.payloads"}

TWINS = [
    (redlatch.Client, redlatch.AsyncClient),
    (redlatch.Lock, redlatch.AsyncLock),
    (redlatch.Condition, redlatch.AsyncCondition),
    (redlatch.Latch, redlatch.AsyncLatch),
]
twins = pytest.mark.parametrize(("sync", "other"), TWINS)

# The calls that make an object and ask no master.
MAKERS = {
    "lock",
    "rlock",
    "fair_lock",
    "rw_lock",
    "semaphore",
    "rate_limit",
    "rate_limited",
    "multi_lock",
    "locked",
    "latch",
    "condition",
}

# The names that differ between the two faces.
TRANSLATED = {"__enter__": "__aenter__", "__exit__": "__aexit__"}

# The words that differ in the docstrings of the asyncio face; all others are the same.
WORDS = {
    "AsyncSemaphore": "Semaphore",
    "AsyncRateLimit": "RateLimit",
    "Awaitable[object] | None] | None": "None] | None",
    "AsyncPlainOptions": "PlainOptions",
    "AsyncRLock": "RLock",
    "AsyncMultiLock": "MultiLock",
    "coroutine function": "function",
    "the task that holds": "the thread that holds",
    "AsyncCondition": "Condition",
    "AsyncLatch": "Latch",
    "AsyncClient": "Client",
    "AsyncLock": "Lock",
    "async with": "with",
    "asyncio tasks": "threads",
    "another task": "another thread",
    "A task may": "A thread may",
    "tasks of one event loop": "threads",
    "in another loop or a forked child": "in a forked child",
    "in the event loop": "in a thread of the client",
    "await ": "",
}


# The options that only one face has: an event loop releases the GIL by itself, and a thread cannot be cancelled.
ONLY_ONE = r"gil_patience: .*? 0: never\. |cancel_on_loss: .*? Default False\. |It may be a coroutine function.*?\. "
ONE_FACE_ONLY = {"gil_patience", "cancel_on_loss"}


def callables(cls: type) -> dict[str, FunctionType]:
    """Return the public functions that a class defines itself, by name."""
    return {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, FunctionType) and (name.startswith("__") or not name.startswith("_"))
    }


def as_sync(text: str | None) -> str:
    """Return a docstring or an annotation in the words of the sync face, in one line."""
    line = re.sub(ONLY_ONE, "", " ".join((text or "").split()))
    for theirs, ours in WORDS.items():
        line = line.replace(theirs, ours)
    return line


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Return a function's parameters without their annotations."""
    parameters = inspect.signature(function).parameters.values()
    wanted = [parameter for parameter in parameters if parameter.name not in ONE_FACE_ONLY]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in wanted]


# --- the two faces -----------------------------------------------------------------------------------


@twins
def test_the_two_faces_define_the_same_names(sync: type, other: type) -> None:
    assert {TRANSLATED.get(name, name) for name in callables(sync)} == set(callables(other))


@twins
def test_the_two_faces_take_the_same_arguments(sync: type, other: type) -> None:
    for name, function in callables(sync).items():
        twin = callables(other)[TRANSLATED.get(name, name)]
        assert shape(function) == shape(twin), name
        ours, theirs = (
            {
                key: as_sync(str(value))
                for key, value in each.__annotations__.items()
                if key != "return" and key not in ONE_FACE_ONLY
            }
            for each in (function, twin)
        )
        assert ours == theirs, name


@twins
def test_the_two_faces_return_the_same(sync: type, other: type) -> None:
    for name, function in callables(sync).items():
        twin = callables(other)[TRANSLATED.get(name, name)]
        returned = re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", str(twin.__annotations__["return"]))
        assert str(function.__annotations__["return"]) == as_sync(returned), name


@twins
def test_the_two_faces_have_the_same_docstrings(sync: type, other: type) -> None:
    assert as_sync(sync.__doc__) == as_sync(other.__doc__)
    for name, function in callables(sync).items():
        twin = callables(other)[TRANSLATED.get(name, name)]
        assert as_sync(function.__doc__) == as_sync(twin.__doc__), name


@twins
def test_only_methods_that_do_io_are_awaited(sync: type, other: type) -> None:
    awaited = {name for name, function in callables(other).items() if inspect.iscoroutinefunction(function)}
    assert awaited == set(callables(other)) - {"__init__"} - (
        MAKERS - {"locked"} if other is redlatch.AsyncLock else MAKERS
    )


ASYNCIO = [
    *[getattr(redlatch, name) for name in redlatch.__all__ if name.startswith("Async")],
    redlatch.sql.AsyncClient,
    redlatch.testing.AsyncMemoryClient,
    redlatch.compat.aioredlock.Aioredlock,
    redlatch.compat.aioredlock.Lock,
    redlatch.compat.pottery.AIORedlock,
    redlatch.compat.redis_py.AsyncLock,
    redlatch.django.locks.AsyncCacheLock,
]


@pytest.mark.parametrize("cls", ASYNCIO, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_inspect_knows_every_method_that_is_awaited(cls: type) -> None:
    """Frameworks decide by it whether to await a call."""
    methods = {name: value for name, value in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    awaited = {name for name, value in methods.items() if "Coroutine[" in str(value.__annotations__.get("return"))}
    unmarked = [name for name in awaited if not inspect.iscoroutinefunction(methods[name])]
    assert not unmarked
    assert any([inspect.iscoroutinefunction(value) for value in methods.values()])


def test_a_mock_of_the_asyncio_face_is_awaited_too() -> None:
    lock = create_autospec(redlatch.AsyncLock, instance=True)

    async def use() -> None:
        await lock.acquire(timeout=1.0)
        await lock.release()
        async with lock:
            pass

    asyncio.run(use())
    lock.acquire.assert_awaited_once_with(timeout=1.0)
    with pytest.raises(TypeError):
        lock.acquire(ttl=1.0)


@twins
def test_a_method_that_the_faces_share_is_one_function(sync: type, other: type) -> None:
    base = next(cls for cls in sync.__mro__[1:] if cls in other.__mro__)
    # Of a class between them, each face has its own.
    own = {name for cls in (sync, other) for each in cls.__mro__[: cls.__mro__.index(base)] for name in vars(each)}
    assert base.__module__.startswith("redlatch.")
    for name in vars(base):
        if not name.startswith("__") and name not in own:
            # Each access to a class method makes a new bound one of the same function.
            mine, theirs = getattr(sync, name), getattr(other, name)
            assert getattr(mine, "__func__", mine) is getattr(theirs, "__func__", theirs), name


@pytest.mark.parametrize("cls", [cls for pair in TWINS for cls in pair])
def test_every_public_method_has_a_docstring(cls: type) -> None:
    for name, value in inspect.getmembers(cls):
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), name


def test_the_test_of_docstrings_changes_nothing_but_the_words_listed() -> None:
    assert as_sync("``async with`` and `AsyncLock.acquire`\n   wait") == "``with`` and `Lock.acquire` wait"


# --- the two builds ----------------------------------------------------------------------------------


@pytest.fixture(params=HOT)
def pair(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    """A hot module compiled, and the same module in pure Python."""
    return implementation_named("c").module(request.param), implementation_named("python").module(request.param)


def own(module: ModuleType) -> dict[str, Any]:
    """Return the public classes and functions that a module defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) in (module.__name__, module.__name__.replace("._c", ""))
        and getattr(value, "__name__", name) == name
    }


def methods(cls: type) -> dict[str, Any]:
    """Return the public methods that a class defines itself."""
    return {name: value for name, value in vars(cls).items() if not name.startswith("_") and inspect.isroutine(value)}


def test_every_hot_module_is_covered_by_the_parity_tests(pair: tuple[ModuleType, ModuleType]) -> None:
    assert own(pair[1])


def test_both_builds_define_the_same_names(pair: tuple[ModuleType, ModuleType]) -> None:
    compiled, pure = pair
    assert set(own(compiled)) == set(own(pure))
    assert set(own(compiled)) <= set(vars(compiled))


def test_both_builds_have_the_same_constants(pair: tuple[ModuleType, ModuleType]) -> None:
    compiled, pure = pair
    if pure.__name__ == "redlatch.wire.engine.net":
        # This module is written twice; wire/engine/test_net.py compares the two.
        return
    constants = {
        name: value for name, value in vars(pure).items() if re.fullmatch("[A-Z_]+", name) and type(value) is int
    }
    assert {name: getattr(compiled, name) for name in constants} == constants


def test_both_builds_have_the_same_methods(pair: tuple[ModuleType, ModuleType]) -> None:
    compiled, pure = pair
    for name, cls in own(pure).items():
        if isinstance(cls, type):
            assert set(methods(own(compiled)[name])) == set(methods(cls)), name


def test_both_builds_take_the_same_arguments(pair: tuple[ModuleType, ModuleType]) -> None:
    compiled, pure = pair
    for name, value in own(pure).items():
        twin = own(compiled)[name]
        if not isinstance(value, type):
            assert shape(twin) == shape(value), name
            continue
        for method, function in methods(value).items():
            assert shape(methods(twin)[method]) == shape(function), f"{name}.{method}"


# A compiled function shows the parameters of the .py text. The .pxd file has those that C code uses. A compiled
# constructor shows no parameters, but it is compiled from the same text.

ALL_TEXTS = [of_python(name) for name in HOT]
ALL_TYPES = [of_cython(name) for name in HOT]


@pytest.mark.parametrize("name", sorted(set(HOT) - WRITTEN_TWICE))
def test_the_types_of_a_module_declare_the_parameters_and_fields_of_its_text(name: str) -> None:
    assert differences(of_python(name), of_cython(name), ALL_TEXTS, ALL_TYPES) == []


@pytest.mark.parametrize("name", sorted(WRITTEN_TWICE))
def test_the_two_texts_of_a_module_declare_the_same_parameters_and_fields(name: str) -> None:
    text, types = of_python(name), of_cython(name)
    # A function that only C code can call has no counterpart in the pure text.
    internal = {what: each for what, each in types.internal.items() if is_public(what)}
    assert differences(text, replace(types, internal=internal), ALL_TEXTS, ALL_TYPES) == []
    written = of_cython(name, ".pyx").functions
    written = {what.replace("__cinit__", "__init__"): each for what, each in written.items()}
    shown = {what: each for what, each in written.items() if is_public(what) or what.endswith("__init__")}
    assert different_parameters(text, shown) == []


TEXT = """
class Queue:
    __slots__ = ("_last", "length")

    def __init__(self):
        self.length = self._last = 0

    def join(self, entry, now_ns, until_ns=0): ...

    def _call(self, entry): ...
"""
TYPES = """
cdef class Queue:
    cdef readonly int length  # of entries
    cdef int _last

    cpdef join(self, Entry entry, long long now_ns,
               long long until_ns=*)
    cdef bint _call(self, Entry entry) except -1
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("now_ns", "at_ns"),
        ("Entry entry, long long now_ns", "long long now_ns, Entry entry"),
        ("until_ns=*", "until_ns"),
        ("now_ns", "now_ns=*"),
        ("_call(self, Entry entry)", "_call(self, Entry other)"),
        ("_call", "call"),
        ("cpdef join", "cdef join"),
        ("readonly int", "int"),
        ("int length", "int size"),
        ("cdef int _last", "cdef readonly int last"),
    ],
)
def test_the_tests_of_types_see_every_difference(old: str, new: str) -> None:
    def compare(types: str) -> list[str]:
        return differences(read_python(TEXT), read_cython(types), [], [])

    assert compare(TYPES) == []
    assert compare(TYPES.replace(old, new)) != []


# --- what can be imported ----------------------------------------------------------------------------


@pytest.mark.parametrize("face", [redlatch.Client, redlatch.AsyncClient])
def test_every_class_that_a_call_returns_can_be_imported_from_redlatch(face: type) -> None:
    faces = {"MultiLock", "RLock"} | {each.__name__ for pair in TWINS for each in pair}
    checked = [getattr(redlatch, name) for name in faces]
    for cls in [face, *checked]:
        for name, function in callables(cls).items():
            for word in re.findall(r"\w+", str(function.__annotations__["return"])):
                home = sys.modules[function.__module__]
                found = getattr(home, word, None)
                if isinstance(found, type) and found.__module__.startswith("redlatch"):
                    assert getattr(redlatch, word) is found, f"{cls.__name__}.{name}"


def test_dir_lists_the_public_names_only() -> None:
    assert dir(redlatch) == sorted(redlatch.__all__)
    assert not [name for name in dir(redlatch) if name.startswith("_") and name != "__version__"]


# The public names of every class of locks: what completion offers a user.
SHARED = {"acquire", "check", "extend", "group", "release", "remaining"}
PLAIN = {"condition", "deadline_ns", "elapsed", "fence", "holder", "locked", "lost", "name", "owned", "token", "ttl"}
NAMES = {
    "Lock": SHARED | PLAIN,
    "Semaphore": SHARED | PLAIN,
    "RLock": SHARED | {"count", "lock", "name"},
    "MultiLock": SHARED | {"names"},
    "Condition": {"lock", "notify", "notify_all", "wait"},
    "Latch": {"count", "count_down", "name", "remaining", "wait"},
}


@pytest.mark.parametrize("face", ["", "Async"])
@pytest.mark.parametrize("name", NAMES)
def test_a_lock_offers_its_documented_names_only(name: str, face: str) -> None:
    offered = {each for each in dir(getattr(redlatch, face + name)) if not each.startswith("_")}
    assert offered == NAMES[name]


def test_a_read_write_lock_offers_its_documented_names_only() -> None:
    assert {each for each in dir(redlatch.RWLock) if not each.startswith("_")} == {"read", "write"}
