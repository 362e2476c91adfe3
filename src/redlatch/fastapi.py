"""Locks for the requests of FastAPI and Starlette.

The response is 423 if another request holds the lock, 503 if masters are missing (both with Retry-After), and 500 if
the lock was lost; see `LockError.http_status`. This module needs only Starlette, whose endpoints use
`RequestLock.held`.
"""

# This module has no `annotations` import: FastAPI cannot resolve postponed annotations of a callable object.

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection

from .aio import AsyncClient, AsyncLock
from .config import seconds_of
from .errors import ClientClosed, ConfigurationError, LockBusy, LockError, LockLost, QuorumUnavailable, Retryable
from .locks.decorate import check_template, fields_of
from .options import AsyncPlainOptions, Masters

__all__ = ["STATE", "RequestLock", "client_of", "lifespan", "lock"]

logger = logging.getLogger("redlatch")

# The client's name in the state of the application: ``request.state.redlatch``.
STATE = "redlatch"

POLICY_VIOLATION, INTERNAL_ERROR, TRY_AGAIN_LATER = 1008, 1011, 1013

HELD = LockBusy.http_status

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(masters: Masters, *, inner: Callable[[Any], Any] | None = None, **options: Any) -> Lifespan:
    """Make a lifespan that opens an `AsyncClient` when the application starts and closes it when it ends.

    The application starts even if no master can be reached. Until then, the response to locked requests is 503.

    Args:
        masters, options: as for `AsyncClient`.
        inner: another lifespan, which runs while the client is open. Its state is kept. Default None.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncClient(masters, **options) as client:
            if inner is None:
                yield {STATE: client}
                return
            async with inner(app) as state:
                yield {**(state or {}), STATE: client}

    return run


def client_of(connection: HTTPConnection) -> AsyncClient:
    """Return the client of the application.

    Raises:
        ConfigurationError: the lifespan of the application has put no client into its state.
    """
    client = getattr(connection.state, STATE, None)
    if not isinstance(client, AsyncClient):
        raise ConfigurationError(
            "the application has no redlatch client: give it lifespan=redlatch.fastapi.lifespan(masters), or let its "
            f"own lifespan yield {{{STATE!r}: client}} with an AsyncClient; under a test client, run the lifespan"
        )
    return client


def lock(
    name: str | Callable[[HTTPConnection], str],
    ttl: float | None = None,
    *,
    busy: int = HELD,
    retry_after: float | None = None,
    **options: Unpack[AsyncPlainOptions],
) -> "RequestLock":
    """Make a dependency: the request holds a lock until its dependencies end.

    Dependencies end in the reverse order, so put the lock before the database session: it is then released after the
    commit. FastAPI ends dependencies with ``scope="function"`` before it sends the response, and all others after it. A
    lock with that scope needs a session with that scope, too.

    Args:
        name: the name of the lock, with path parameters in braces: "order:{order_id}". Or a function of the request.
        ttl: the time to live in seconds. None means the ttl of the client.
        busy: the status of the response if another holder has the lock. Default 423 (Locked).
        retry_after: the Retry-After of that response, in seconds, at least 1. Default: `retry_after` of the error.
        options: as for `AsyncClient.lock`. The default of `timeout`, the time that a request waits, is 1 second.

    Raises:
        ConfigurationError, TypeError: the name, the status or a time is invalid.
    """
    if not callable(name):
        check_template(name)
        for field in fields_of(name):
            if not field.partition(".")[0].partition("[")[0].isidentifier():
                raise ConfigurationError(f"name: {name!r} needs the name of a path parameter in {{{field}}}")
    if not 400 <= busy <= 599:
        raise ConfigurationError(f"busy: a status of 400 to 599 is needed, such as 423 or 409; got {busy}")
    seconds_of("timeout", options.setdefault("timeout", 1.0))
    return RequestLock(name, ttl, busy, seconds_of("retry_after", retry_after), options)


class RequestLock:
    """The lock of a request; made by `lock`. FastAPI's `Depends` takes it, and provides a held `AsyncLock`."""

    def __init__(
        self,
        name: str | Callable[[HTTPConnection], str],
        ttl: float | None,
        busy: int,
        retry_after: float | None,
        options: AsyncPlainOptions,
    ) -> None:
        self._name = name
        self._ttl = ttl
        self._busy = busy
        self._retry_after = retry_after
        self._options = options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    async def __call__(self, connection: HTTPConnection) -> AsyncIterator[AsyncLock]:
        async with self.held(connection) as held:
            yield held

    @asynccontextmanager
    async def held(self, connection: HTTPConnection) -> AsyncIterator[AsyncLock]:
        """Hold the lock in an ``async with``, in an endpoint of Starlette or anywhere else.

        No response names a master or another holder. If the masters cannot be reached at the end, the response stays,
        and the failed release is logged.

        Raises:
            HTTPException: `busy`, if another holder has the lock; 503, if too many masters failed, the queue of the
                lock is full or the client was closed; 500, if the lock was lost; 400, if the path makes no valid name.
                Lock errors of the body count, too. For a WebSocket it is a WebSocketException: "policy violation" for
                the name, "internal error" for a lost lock or a closed client, otherwise "try again later".
            ConfigurationError: the application has no client, or the path has no such parameter.
        """
        own, done = self._lock_of(connection), False
        try:
            async with own:
                yield own
                done = True
        except (Retryable, LockLost, ClientClosed) as error:
            if done and isinstance(error, (QuorumUnavailable, ClientClosed)):
                logger.warning("the release of lock %r failed, so it stays until its ttl is over: %s", own.name, error)
                return
            raise self._answer(connection, error) from error

    def _answer(self, connection: HTTPConnection, error: LockError) -> HTTPException | WebSocketException:
        status, headers = error.http_status, error.http_headers
        if status == HELD:
            status = self._busy
            if self._retry_after is not None:
                headers = LockBusy(retry_after=self._retry_after).http_headers
        return _refusal(connection, status, _detail_of(error), headers)

    def _lock_of(self, connection: HTTPConnection) -> AsyncLock:
        client = client_of(connection)
        name = self._name(connection) if callable(self._name) else _filled(self._name, connection.path_params)
        try:
            return client.lock(name, self._ttl, **self._options)
        except ConfigurationError as error:
            # Only an error about the name has a name, which may come from the path.
            if error.name is None:
                raise
            raise _refusal(connection, 400, "the path makes no valid name of a lock", {}) from error


def _filled(template: str, parameters: Mapping[str, Any]) -> str:
    try:
        return template.format_map(parameters)
    except KeyError as error:
        known = ", ".join(parameters) or "none"
        raise ConfigurationError(
            f"name: {template!r} needs a path parameter {error}, but the parameters of this path are: {known}"
        ) from error


def _detail_of(error: LockError) -> str:
    # The text names neither masters nor holders.
    if isinstance(error, LockLost):
        return "the lock was lost meanwhile"
    if isinstance(error, (QuorumUnavailable, ClientClosed)):
        return "the lock service is not available"
    return "too many requests wait for the lock" if error.http_status == 503 else "locked by another request"


def _refusal(
    connection: HTTPConnection, status: int, detail: str, headers: dict[str, str]
) -> HTTPException | WebSocketException:
    if connection.scope["type"] == "websocket":
        code = TRY_AGAIN_LATER if headers else INTERNAL_ERROR if status >= 500 else POLICY_VIOLATION
        return WebSocketException(code, detail)
    return HTTPException(status, detail, headers or None)
