"""Functions decorated with a lock: no kind of function runs its body without the lock (row 52)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from support.faces import ask

from redlatch import AsyncClient, Client, ConfigurationError, impl

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def plain() -> str:
    ran.append("plain")
    return "done"


async def coroutine_function() -> str:
    ran.append("coroutine")
    return "done"


def generator_function() -> Iterator[None]:
    ran.append("generator")
    yield


async def async_generator_function() -> AsyncIterator[None]:
    ran.append("async generator")
    yield


@types.coroutine
def generator_coroutine() -> Any:
    ran.append("generator coroutine")
    yield


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as a logging decorator does."""

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


class Calls:
    """An object that calls one of these functions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self) -> Any:
        return self.function()


class AsyncCall:
    async def __call__(self) -> str:
        return await coroutine_function()


class GeneratorCall:
    def __call__(self) -> Iterator[None]:
        ran.append("generator")
        yield


class Awaitable:
    def __await__(self) -> Iterator[None]:
        ran.append("awaitable")
        yield


# Functions that a Client refuses when they are decorated, or when they return.
LATE: dict[str, Any] = {
    "a coroutine function": coroutine_function,
    "a staticmethod over a coroutine function": staticmethod(coroutine_function),
    "a classmethod over a coroutine function": classmethod(lambda cls: coroutine_function()),
    "a partial of a coroutine function": functools.partial(coroutine_function),
    "a wrapper round a coroutine function": wrapped(coroutine_function),
    "a lambda that returns a coroutine": lambda: coroutine_function(),
    "an object with an async call": AsyncCall(),
    "an object whose call returns a coroutine": Calls(coroutine_function),
    "a lambda that returns an awaitable": lambda: Awaitable(),
    "a generator function": generator_function,
    "a staticmethod over a generator function": staticmethod(generator_function),
    "a wrapper round a generator function": wrapped(generator_function),
    "an object whose call is a generator": GeneratorCall(),
    "an object whose call returns a generator": Calls(generator_function),
    "an async generator function": async_generator_function,
    "a wrapper round an async generator function": wrapped(async_generator_function),
    "a coroutine made of a generator": generator_coroutine,
    "a context manager made of a generator function": contextlib.contextmanager(generator_function),
    "an async context manager": contextlib.asynccontextmanager(async_generator_function),
}


@pytest.mark.parametrize("what", LATE)
def test_row_52_a_body_that_would_run_without_the_lock_is_refused_and_does_not_run(
    implementation: impl.Implementation, url: str, name: str, what: Any
) -> None:
    with Client(url) as client:
        with pytest.raises(TypeError, match="locked: "):

            class Holder:
                call = client.locked(name)(LATE[what])

            Holder.call()
        # A coroutine that was not closed would warn now.
        gc.collect()
        assert ran == []
        assert not ask(url).exists(name)


def test_row_52_a_future_that_a_function_returns_is_cancelled(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def main() -> None:
        with Client(url) as client:
            made: list[asyncio.Task[str]] = []

            @client.locked(name)
            def begin() -> asyncio.Task[str]:
                made.append(asyncio.get_running_loop().create_task(coroutine_function()))
                return made[0]

            with pytest.raises(TypeError, match="returned an awaitable"):
                begin()
            with pytest.raises(asyncio.CancelledError):
                await made[0]
            assert ran == []

    asyncio.run(main())


def test_row_52_an_awaitable_that_is_refused_is_not_closed(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    class Pool(Awaitable):
        async def close(self) -> None:
            ran.append("close")

    with Client(url) as client:
        with pytest.raises(TypeError, match="returned an awaitable"):
            client.locked(name)(lambda: Pool())()
        # A coroutine of close() without an await would warn now.
        gc.collect()
    assert ran == []


@pytest.mark.parametrize(
    "function",
    [plain, functools.partial(plain), Calls(plain), wrapped(plain), lambda: plain()],
    ids=["function", "partial", "object", "wrapper", "lambda"],
)
def test_row_52_a_plain_function_runs_with_the_lock(
    implementation: impl.Implementation, url: str, name: str, function: Any
) -> None:
    with Client(url) as client:
        seen = []

        def look() -> Any:
            seen.append(ask(url).exists(name))
            return function()

        assert client.locked(name)(look)() == "done"
        assert client.locked(name)(function)() == "done"
        assert seen == [1]
        assert ran == ["plain", "plain"]


def test_row_52_a_wrapper_that_completes_its_coroutine_is_a_plain_function(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    @functools.wraps(coroutine_function)
    def to_the_end() -> str:
        return asyncio.run(coroutine_function())

    with Client(url) as client:
        assert client.locked(name)(to_the_end)() == "done"
    assert ran == ["coroutine"]


def test_row_52_static_and_class_methods_may_be_decorated_in_either_order(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    def exists(key: str) -> int:
        count: int = ask(url).exists(key)
        return count

    with Client(url) as client:

        class Report:
            @client.locked(name + ":{day}")
            @staticmethod
            def outside(day: int) -> int:
                return day + exists(f"{name}:{day}")

            @staticmethod
            @client.locked(name + ":{day}")
            def inside(day: int) -> int:
                return day + exists(f"{name}:{day}")

            @client.locked(name + ":{day}")
            @classmethod
            def of_class(cls, day: int) -> int:
                assert cls is Report
                return day + exists(f"{name}:{day}")

        assert [Report.outside(3), Report().outside(4), Report.inside(5), Report().inside(6)] == [4, 5, 6, 7]
        assert [Report.of_class(7), Report().of_class(8)] == [8, 9]


# --- asyncio --------------------------------------------------------------------------------------------------


class Static:
    pass


RUN_WITH_ITS_LOCK: dict[str, Any] = {
    "a coroutine function": coroutine_function,
    "a staticmethod over a coroutine function": staticmethod(coroutine_function),
    "a partial of a coroutine function": functools.partial(coroutine_function),
    "a wrapper round a coroutine function": wrapped(coroutine_function),
    "an object with an async call": AsyncCall(),
}


@pytest.mark.parametrize("what", RUN_WITH_ITS_LOCK)
def test_row_52_a_coroutine_runs_with_the_lock_whatever_kind_of_callable_returns_it(
    implementation: impl.Implementation, url: str, name: str, what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Seen(list[str]):
        def append(self, what: str) -> None:
            seen.append(ask(url).exists(name))

    async def main() -> None:
        async with AsyncClient(url) as client:
            call = client.locked(name)(RUN_WITH_ITS_LOCK[what])
            assert await (call.__func__ if isinstance(call, staticmethod) else call)() == "done"
        assert not ask(url).exists(name)

    monkeypatch.setitem(globals(), "ran", Seen())
    asyncio.run(main())
    assert seen == [1]


@pytest.mark.parametrize(
    "function",
    [plain, lambda: coroutine_function(), generator_function, async_generator_function, GeneratorCall(), Calls(plain)],
    ids=["function", "lambda", "generator", "async generator", "generator object", "object"],
)
def test_row_52_anything_but_a_coroutine_function_is_refused_at_the_decoration(
    implementation: impl.Implementation, url: str, name: str, function: Any
) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TypeError, match="locked: "):
                client.locked(name)(function)

    asyncio.run(main())
    assert ran == []


def test_row_52_a_wrapper_that_makes_a_generator_of_a_coroutine_function_is_refused(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    @functools.wraps(coroutine_function)
    def later() -> Iterator[None]:
        return generator_function()

    async def main() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TypeError, match="returned a generator"):
                await client.locked(name)(later)()  # type: ignore[misc]

    asyncio.run(main())
    assert ran == []


@pytest.mark.parametrize(
    "late",
    [coroutine_function, generator_function, async_generator_function],
    ids=["coroutine", "generator", "async generator"],
)
def test_row_52_a_returned_coroutine_or_generator_that_has_not_run_is_refused(
    implementation: impl.Implementation, url: str, name: str, late: Any
) -> None:
    async def later() -> Any:
        return late()

    async def main() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TypeError, match=r"later returned an? (awaitable|generator), which would run without"):
                await client.locked(name)(later)()
        # A coroutine that was not closed would warn now.
        gc.collect()

    asyncio.run(main())
    assert ran == []
    assert not ask(url).exists(name)


def test_row_52_a_coroutine_function_may_return_a_task_or_an_object_that_can_be_awaited(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            pool = Awaitable()

            @client.locked(name)
            async def connect() -> Awaitable:
                return pool

            @client.locked(name)
            async def begin() -> asyncio.Task[str]:
                return asyncio.get_running_loop().create_task(coroutine_function())

            assert await connect() is pool
            assert await (await begin()) == "done"

    asyncio.run(main())
    assert ran == ["coroutine"]


# --- decorated objects and templates --------------------------------------------------------------------------


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Static, "Static is a class; decorate its methods"),
        (3, "a function is needed, not int"),
        (property(cast(Any, plain)), "a function is needed, not property"),
        (max, "no coroutine function|no signature"),
    ],
)
def test_row_52_an_object_that_is_no_function_is_refused_at_the_decoration(
    implementation: impl.Implementation, url: str, face: Any, given: Any, text: Any
) -> None:
    with pytest.raises(TypeError, match=text):
        face(url).locked("name")(given)


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{x:{z}}", r"\{z\} is no argument of .*: x, y"),
        ("{x:{y}{z}}", r"\{z\} is no argument"),
        ("{x:{}}", r"\{\} is no argument"),
        ("{}", r"\{\} is no argument"),
        ("{0}", r"\{0\} is no argument"),
        ("{x:{y:{x}}}", "malformed"),
        ("{x!q}", "malformed.*conversion"),
        ("{x:{y!q}}", "malformed.*conversion"),
        ("{x[}", "malformed"),
        ("{x.}", "malformed"),
        ("{x[0]y}", "malformed"),
        ("{x", "malformed"),
        ("x}", "malformed"),
        ("{z.real}", r"\{z.real\} is no argument"),
    ],
)
def test_row_52_a_template_that_cannot_work_is_refused_at_the_decoration(
    implementation: impl.Implementation, url: str, face: Any, template: Any, text: Any
) -> None:
    def sync(x: int, y: int) -> None: ...

    async def other(x: int, y: int) -> None: ...

    with pytest.raises(ConfigurationError, match=text):
        face(url).locked(template)(sync if face is Client else other)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{x:{y}}", "    7"),
        ("{x!r:>{y}}", "    7"),
        ("{x.real}", "7"),
        ("{z[day]}", "3"),
        ("{z[a.b]}", "4"),
        ("{{x}}{x:03}", "{x}007"),
    ],
)
def test_row_52_fields_of_a_template_may_have_attributes_indexes_and_formats(
    implementation: impl.Implementation, url: str, name: str, template: Any, expected: Any
) -> None:
    with Client(url, prefix=name) as client:

        @client.locked(template)
        def keys(x: int, y: int, z: dict[str, int]) -> list[bytes]:
            found: list[bytes] = ask(url).keys(f"*{name}*")
            return found

        assert f"{name}{expected}".encode() in keys(7, 5, {"day": 3, "a.b": 4})


def test_a_name_without_fields_needs_no_arguments_that_another_decorator_passes(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    def passing(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function("context", *args)

        return wrapper

    with Client(url) as client:

        @client.locked(name + "{{x}}")
        @passing
        def job(context: str, day: int) -> tuple[str, int, int]:
            return context, day, ask(url).exists(name + "{x}")

        assert job(3) == ("context", 3, 1)
