"""Spans of OpenTelemetry around single acquires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

try:
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer
except ImportError as error:
    raise ImportError(
        f"redlatch.metrics.traced needs opentelemetry-api: pip install 'redlatch[otel]' ({error})"
    ) from error

from .. import __version__
from ..errors import ClientClosed, LockBusy, LockTimeout, QuorumUnavailable

if TYPE_CHECKING:
    from ..aio import AsyncLock
    from ..client import Lock
    from ..locks.reentrant import AsyncRLock, RLock
    from ..locks.task_multi import AsyncMultiLock
    from ..locks.thread_multi import MultiLock

SyncLock = TypeVar("SyncLock", bound="Lock | RLock | MultiLock")
LoopLock = TypeVar("LoopLock", bound="AsyncLock | AsyncRLock | AsyncMultiLock")

# The outcomes of acquires that raise. Other errors, such as AlreadyHeld, are no outcomes.
_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (LockBusy, "busy"),
    (LockTimeout, "timeout"),
    (QuorumUnavailable, "unavailable"),
    (asyncio.CancelledError, "cancelled"),
    (KeyboardInterrupt, "cancelled"),
    (ClientClosed, "cancelled"),
)


class Acquiring:
    def __init__(self, lock: Any, names: bool, provider: TracerProvider | None) -> None:
        self._tracer = get_tracer("redlatch", __version__, provider)
        self._group: str = lock.group
        self._attributes = {"redlatch.lock.group": self._group} if self._group else {}
        if names:
            several = getattr(lock, "names", None)
            self._attributes["redlatch.lock.name"] = str(lock.name if several is None else several)

    @contextmanager
    def span(self) -> Iterator[None]:
        # The text of an error contains the lock's name.
        with self._tracer.start_as_current_span(
            f"acquire {self._group}".rstrip(),
            kind=SpanKind.INTERNAL,
            attributes=self._attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _fail(span, error)
                raise
            span.set_attribute("redlatch.lock.outcome", "acquired")


def _fail(span: Span, error: BaseException) -> None:
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            span.set_attribute("redlatch.lock.outcome", outcome)
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


class Traced(Generic[SyncLock]):
    """A lock whose ``with`` has a span for the acquire."""

    def __init__(self, lock: SyncLock, acquiring: Acquiring) -> None:
        self._lock = lock
        self._acquiring = acquiring

    def __enter__(self) -> SyncLock:
        won = False
        try:
            with self._acquiring.span():
                self._lock.__enter__()
                won = True
        except BaseException as error:
            # The end of the span has failed or was interrupted.
            if won:
                self._lock.__exit__(type(error), error, error.__traceback__)
            raise
        return self._lock

    def __exit__(self, *ended: Any) -> None:
        self._lock.__exit__(*ended)


class AsyncTraced(Generic[LoopLock]):
    """A lock whose ``async with`` has a span for the acquire."""

    def __init__(self, lock: LoopLock, acquiring: Acquiring) -> None:
        self._lock = lock
        self._acquiring = acquiring

    async def __aenter__(self) -> LoopLock:
        won = False
        try:
            with self._acquiring.span():
                await self._lock.__aenter__()
                won = True
        except BaseException as error:
            # As in `Traced`.
            if won:
                await self._lock.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._lock

    async def __aexit__(self, *ended: Any) -> None:
        await self._lock.__aexit__(*ended)
