"""Locks of FastAPI and Starlette requests, served by uvicorn, on real masters."""

# FastAPI cannot resolve postponed annotations that name local variables, so there is no `annotations` import.

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from support.faces import PATIENCE, await_true, in_thread

from redlatch import AsyncClient, AsyncLock, Client, ConfigurationError, LockLost, impl
from redlatch.fastapi import STATE, client_of, lifespan, lock
from redlatch.testing import Masters

from .conftest import Serve

Scope = Literal["function", "request"] | None
Fleet = Callable[..., Masters]


def path_of(name: str) -> str:
    return f"/{name}"


@pytest.fixture
def app(implementation: impl.Implementation, three: list[str]) -> FastAPI:
    """An application whose client has three masters."""
    return FastAPI(lifespan=lifespan(three))


# --- the name and the lock ------------------------------------------------------------------------------


def test_a_request_holds_the_lock_that_its_path_names(app: FastAPI, serve: Serve, three: list[str], name: str) -> None:
    @app.post("/{order}/lines/{line}")
    async def order(line: int, held: Annotated[AsyncLock, Depends(lock("{order}:{line}", ttl=3.0))]) -> list[object]:
        held.check()
        return [held.name, held.ttl, line]

    assert serve(app).post(f"/{name}/lines/7").json() == [f"{name}:7", 3.0, 7]
    with Client(three) as client:
        await_true(client.lock(f"{name}:7").acquire)  # it is free after the request


def test_a_function_may_make_the_name_from_the_request(app: FastAPI, serve: Serve, name: str) -> None:
    by_user = lock(lambda connection: f"{name}:{connection.headers['x-user']}")

    @app.get("/")
    async def root(held: Annotated[AsyncLock, Depends(by_user)]) -> object:
        return held.name

    assert serve(app).get("/", headers={"x-user": "ann"}).json() == f"{name}:ann"


def test_a_blocking_endpoint_runs_under_the_lock(app: FastAPI, serve: Serve, three: list[str], name: str) -> None:
    with Client(three) as client:

        @app.get("/{order}", dependencies=[Depends(lock("{order}"))])
        def order(order: str) -> bool:
            return client.lock(order).acquire(blocking=False)

        assert serve(app).get(path_of(name)).json() is False


def test_the_lock_is_free_after_an_error_of_the_endpoint(
    app: FastAPI, serve: Serve, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/{order}", dependencies=[Depends(lock("{order}"))])
    async def order() -> None:
        raise ZeroDivisionError

    assert serve(app).get(path_of(name)).status_code == 500
    with Client(three) as client:
        assert client.lock(name).acquire(timeout=PATIENCE)
    await_true(lambda: "ZeroDivisionError" in caplog.text)  # the server logs it after the answer


# --- answers to requests without the lock ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "after"),
    [({}, 423, "1"), ({"busy": 409, "retry_after": 2.5}, 409, "3"), ({"retry_after": 0.0}, 423, "1")],
)
def test_a_lock_of_another_holder_is_answered_with_retry_after(
    app: FastAPI, serve: Serve, three: list[str], name: str, options: dict[str, Any], status: int, after: str
) -> None:
    ran = []

    @app.get("/{order}", dependencies=[Depends(lock("{order}", timeout=0.0, **options))])
    async def order() -> None:
        ran.append(1)

    web = serve(app)
    with Client(three) as client, client.lock(name):
        answer = web.get(path_of(name))
    assert (answer.status_code, answer.headers["retry-after"], ran) == (status, after, [])
    assert answer.json() == {"detail": "locked by another request"}


def test_a_request_waits_for_the_lock(app: FastAPI, serve: Serve, three: list[str], name: str) -> None:
    clients: list[AsyncClient] = []

    def noted(connection: HTTPConnection) -> str:
        clients.append(client_of(connection))
        return name

    @app.get("/", dependencies=[Depends(lock(noted, timeout=PATIENCE))])
    async def root() -> str:
        return "done"

    web = serve(app)
    with Client(three) as client:
        other = client.lock(name)
        assert other.acquire()
        answer = in_thread(web.get, "/")
        await_true(lambda: clients and name.encode() in clients[0]._quorum.queues.heads)
        assert not answer.done()
        other.release()
        assert answer.result(PATIENCE).json() == "done"


def test_requests_without_a_quorum_are_answered_with_503_and_no_address(
    implementation: impl.Implementation, serve: Serve, fleet: Fleet, name: str
) -> None:
    masters = fleet(3)
    app = FastAPI(lifespan=lifespan(masters.urls))

    @app.get("/{order}", dependencies=[Depends(lock("{order}"))])
    async def order() -> str:
        return "done"

    web = serve(app)
    assert web.get(path_of(name)).status_code == 200
    masters.kill(0)
    masters.kill(1)
    answer = web.get(path_of(name))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json() == {"detail": "the lock service is not available"}


def test_an_application_starts_without_masters_and_locks_when_they_are_there(
    implementation: impl.Implementation, serve: Serve, fleet: Fleet, name: str
) -> None:
    masters = fleet(1)
    masters.kill(0)
    app = FastAPI(lifespan=lifespan(masters.urls, guard=None))

    @app.get("/{order}", dependencies=[Depends(lock("{order}"))])
    async def order() -> str:
        return "done"

    web = serve(app)
    assert web.get(path_of(name)).status_code == 503
    masters.start(0)
    await_true(lambda: web.get(path_of(name)).status_code == 200)


def test_a_path_that_makes_no_valid_name_is_a_bad_request(app: FastAPI, serve: Serve) -> None:
    @app.get("/{order}", dependencies=[Depends(lock("order:{order}"))])
    async def order() -> None: ...

    web = serve(app)
    for path in ("/" + "a" * 513, "/a%00b"):
        answer = web.get(path)
        assert (answer.status_code, answer.json()) == (400, {"detail": "the path makes no valid name of a lock"})


# --- a lost lock ----------------------------------------------------------------------------------------


def test_a_lost_lock_is_answered_with_500_and_no_retry_after(
    app: FastAPI, serve: Serve, three: list[str], name: str
) -> None:
    @app.get("/check/{order}")
    async def check(held: Annotated[AsyncLock, Depends(lock("{order}", ttl=0.05, auto_renew=False))]) -> None:
        await held.lost.wait()
        held.check()

    @app.get("/end/{order}")
    async def end(held: Annotated[AsyncLock, Depends(lock("{order}", ttl=0.05), scope="function")]) -> None:
        await held.lost.wait()

    web = serve(app)
    for path in ("check", "end"):
        answer = web.get(f"/{path}/{name}")
        assert (answer.status_code, answer.json()) == (500, {"detail": "the lock was lost meanwhile"}), path
        assert "retry-after" not in answer.headers


def test_a_lost_lock_cancels_the_endpoint_if_asked_to(app: FastAPI, serve: Serve, name: str) -> None:
    ended = []

    @app.get("/{order}", dependencies=[Depends(lock("{order}", ttl=0.05, cancel_on_loss=True))])
    async def order() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    assert (serve(app).get(path_of(name)).status_code, ended) == (500, ["cancelled"])


def test_a_request_that_is_cancelled_leaves_no_lock(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client, AsyncClient(three) as other:
            connection = HTTPConnection({"type": "http", "state": {STATE: client}, "path_params": {"order": name}})
            inside = asyncio.Event()

            async def request() -> None:
                async with lock("{order}", timeout=None).held(connection):
                    inside.set()
                    await asyncio.Event().wait()

            holder = asyncio.create_task(request())
            await inside.wait()
            waiter = asyncio.create_task(request())
            await asyncio.sleep(0)
            for task in (waiter, holder):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert task.cancelled()
            assert await other.lock(name).acquire(timeout=PATIENCE)

    asyncio.run(main())


def test_an_answer_stands_if_the_masters_are_gone_at_the_end(
    implementation: impl.Implementation, serve: Serve, fleet: Fleet, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    masters = fleet(3)
    app = FastAPI(lifespan=lifespan(masters.urls, attempt_timeout=0.2))

    @app.get("/{order}", dependencies=[Depends(lock("{order}"), scope="function")])
    async def order() -> str:
        for index in (0, 1):
            await asyncio.to_thread(masters.kill, index)
        return "done"

    answer = serve(app).get(path_of(name))
    assert (answer.status_code, answer.json()) == (200, "done")
    assert f"the release of lock {name!r} failed" in caplog.text


# --- the order of dependencies --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [None, "function"])
@pytest.mark.parametrize("where", ["path operation", "parameter"])
def test_the_lock_outlives_the_commit(
    app: FastAPI, serve: Serve, three: list[str], name: str, scope: Scope, where: str
) -> None:
    events: list[object] = []
    ended = threading.Event()
    with Client(three) as client:

        async def session() -> AsyncIterator[None]:
            events.append("begin")
            yield
            # The commit: nobody else gets the lock yet.
            events.append(("commit", await asyncio.to_thread(client.lock(name).acquire, False)))
            ended.set()

        held = Depends(lock("{order}"), scope=scope)
        own = Depends(session, scope=scope)
        if where == "parameter":

            @app.get("/{order}")
            async def by_parameter(held: Annotated[AsyncLock, held], session: Annotated[None, own]) -> None:
                events.append("body")
        else:

            @app.get("/{order}", dependencies=[held])
            async def by_decorator(session: Annotated[None, own]) -> None:
                events.append("body")

        assert serve(app).get(path_of(name)).status_code == 200
        assert ended.wait(PATIENCE)
        assert events == ["begin", "body", ("commit", False)]
        assert client.lock(name).acquire(timeout=PATIENCE)


def test_one_object_in_two_places_is_acquired_once(app: FastAPI, serve: Serve, name: str) -> None:
    own = lock("{order}", timeout=0.0)

    @app.get("/{order}", dependencies=[Depends(own)])
    async def order(held: Annotated[AsyncLock, Depends(own)]) -> object:
        return held.name

    assert serve(app).get(path_of(name)).json() == name


def test_concurrent_requests_lose_no_update(
    app: FastAPI, serve: Serve, implementation: impl.Implementation, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "stock.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE stock (sold INTEGER)")
        database.execute("INSERT INTO stock VALUES (0)")

    async def session() -> AsyncIterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as database:
            yield database
            # Others run between the body and the commit, as with a database on another host.
            await asyncio.sleep(0.001)
            database.commit()

    @app.post("/{item}", dependencies=[Depends(lock("{item}", timeout=PATIENCE))])
    async def sell(database: Annotated[sqlite3.Connection, Depends(session)]) -> None:
        [sold] = database.execute("SELECT sold FROM stock").fetchone()
        await asyncio.sleep(0.001)
        database.execute("UPDATE stock SET sold = ?", (sold + 1,))

    web = serve(app)
    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(web.post, path_of(name)) for _ in range(64)]
    assert [answer.result().status_code for answer in answers] == [200] * 64
    # The last request may have been answered before its commit, which is under the lock.
    assert web.post(path_of(name)).status_code == 200
    with contextlib.closing(sqlite3.connect(path)) as database:
        await_true(lambda: database.execute("SELECT sold FROM stock").fetchone() == (65,))


# --- Starlette, lifespans, mistakes ---------------------------------------------------------------------


def test_starlette_alone_holds_a_lock_in_an_endpoint(
    implementation: impl.Implementation, serve: Serve, three: list[str], name: str
) -> None:
    order = lock("{order}", timeout=0.0)

    async def pay(request: Request) -> JSONResponse:
        async with order.held(request) as held:
            return JSONResponse([held.name, held.remaining() > 0])

    # The state of the lifespan is there in a mounted application, too.
    app = Starlette(routes=[Mount("/shop", routes=[Route("/{order}", pay)])], lifespan=lifespan(three))
    web = serve(app)
    assert web.get(f"/shop/{name}").json() == [name, True]
    with Client(three) as client, client.lock(name):
        answer = web.get(f"/shop/{name}")
        assert (answer.status_code, answer.headers["retry-after"]) == (423, "1")


@pytest.mark.parametrize("state", [{"pool": 7}, None])
def test_another_lifespan_runs_inside_and_keeps_its_state(
    implementation: impl.Implementation, serve: Serve, three: list[str], state: dict[str, int] | None
) -> None:
    events = []

    @contextlib.asynccontextmanager
    async def inner(app: FastAPI) -> AsyncIterator[dict[str, int] | None]:
        events.append("begin")
        yield state
        events.append("end")

    app = FastAPI(lifespan=lifespan(three, inner=inner, prefix="shop:"))

    @app.get("/")
    async def root(request: Request) -> list[object]:
        held = client_of(request).lock("a")
        return [getattr(request.state, "pool", None), held._hold.key.decode()]

    assert serve(app).get("/").json() == [state and 7, "shop:a"]
    assert events == ["begin"]


def test_a_websocket_is_told_to_try_again_later(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> tuple[int, int, int]:
        async with AsyncClient(three) as client:

            async def refused(order: str) -> int:
                scope = {"type": "websocket", "state": {STATE: client}, "path_params": {"order": order}}
                with pytest.raises(WebSocketException) as caught:
                    async with lock("{order}", timeout=0.0).held(HTTPConnection(scope)):
                        raise LockLost("gone")
                return caught.value.code

            async with client.lock(name):
                return await refused(name), await refused(""), await refused(f"{name}-other")

    assert asyncio.run(main()) == (1013, 1008, 1011)


def test_a_request_to_an_application_that_ends_is_answered_with_503(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> HTTPException:
        async with AsyncClient(three) as client:
            connection = HTTPConnection({"type": "http", "state": {STATE: client}, "path_params": {"order": name}})
            async with lock("{order}").held(connection):
                await client.close()
        with pytest.raises(HTTPException) as caught:
            async with lock("{order}").held(connection):
                pass
        return caught.value

    refused = asyncio.run(main())
    assert (refused.status_code, refused.detail) == (503, "the lock service is not available")


def test_the_time_to_retry_after_is_that_of_the_error(app: FastAPI, serve: Serve, name: str) -> None:
    """This client has the lock itself, for its ttl at most."""

    @app.get("/{order}")
    async def order(held: Annotated[AsyncLock, Depends(lock("{order}", ttl=20.0))], request: Request) -> object:
        refused = lock("{order}", timeout=0.0).held(request)
        with pytest.raises(HTTPException) as caught:
            await refused.__aenter__()
        return [caught.value.status_code, caught.value.headers]

    status, headers = serve(app).get(path_of(name)).json()
    assert status == 423
    assert 15 < int(headers["Retry-After"]) <= 20


def test_a_full_queue_is_answered_with_503(
    implementation: impl.Implementation, serve: Serve, three: list[str], name: str
) -> None:
    app = FastAPI(lifespan=lifespan(three, max_waiters=1))

    @app.get("/{order}", dependencies=[Depends(lock("{order}", timeout=PATIENCE, busy=409))])
    async def order() -> str:
        return "done"

    web = serve(app)
    with Client(three) as client, ThreadPoolExecutor(3) as threads:
        lock_of_another = client.lock(name)
        lock_of_another.acquire()
        # The first asks the masters, the second waits in the queue of the application, and one is too many.
        answers = [threads.submit(web.get, path_of(name)) for _ in range(3)]
        done, _ = wait(answers, PATIENCE, FIRST_COMPLETED)
        [refused] = [answer.result() for answer in done]
        assert (refused.status_code, refused.json()) == (503, {"detail": "too many requests wait for the lock"})
        lock_of_another.release()
        assert sorted(answer.result(PATIENCE).status_code for answer in answers) == [200, 200, 503]


def test_an_application_without_a_client_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="give it lifespan="):
        client_of(HTTPConnection({"type": "http"}))


def test_a_path_without_the_parameter_is_an_error_of_the_application(
    app: FastAPI, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/{order}", dependencies=[Depends(lock("{item}"))])
    async def order() -> None: ...

    assert serve(app).get("/1").status_code == 500
    message = "name: '{item}' needs a path parameter 'item', but the parameters of this path are: order"
    await_true(lambda: message in caplog.text)  # the server logs it after the answer


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["{}"], {}, "needs the name of a path parameter in {}"),
        (["{0}"], {}, "needs the name of a path parameter in {0}"),
        (["{order"], {}, "malformed"),
        ([7], {}, "a str is needed"),
        (["a"], {"busy": 200}, "busy: a status of 400 to 599 is needed"),
        (["a"], {"timeout": -1}, "timeout: seconds of at least 0"),
        (["a"], {"retry_after": "1"}, "retry_after: seconds as a number"),
    ],
)
def test_a_mistake_is_found_when_the_dependency_is_made(
    arguments: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigurationError, TypeError)) as caught:
        lock(*arguments, **options)
    assert message in str(caught.value)
