"""Spans: what an exporter gets of acquires that win, wait in vain or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.faces import PATIENCE

from redlatch import AlreadyHeld, AsyncClient, Client, ClientClosed, LockBusy, LockLost, LockTimeout, QuorumUnavailable
from redlatch.metrics import traced


class Spans:
    """A tracer provider, and the spans that it exports."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def only(self) -> ReadableSpan:
        """Return the only span."""
        (span,) = self._exporter.get_finished_spans()
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_an_acquire_has_a_span(client: Client, name: str, spans: Spans) -> None:
    lock = client.lock(name, group="sku")
    with traced(lock, tracer_provider=spans.provider) as entered:
        assert entered is lock
        lock.check()
        # It has ended before the body begins.
        span = spans.only()
        assert not trace.get_current_span().is_recording()
    assert not lock.remaining()
    assert (span.name, span.kind) == ("acquire sku", SpanKind.INTERNAL)
    assert span.attributes == {"redlatch.lock.group": "sku", "redlatch.lock.outcome": "acquired"}
    assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())


def test_an_acquire_of_a_task_has_a_span(three: list[str], name: str, spans: Spans) -> None:
    async def run() -> None:
        async with AsyncClient(three) as client:
            lock = client.lock(name, group="sku")
            async with traced(lock, tracer_provider=spans.provider) as entered:
                assert entered is lock
                lock.check()
                with pytest.raises(LockTimeout):
                    async with traced(client.lock(name, timeout=0.01), tracer_provider=Spans().provider):
                        pass
            assert not lock.remaining()

    asyncio.run(run())
    span = spans.only()
    assert span.name == "acquire sku"
    assert span.attributes == {"redlatch.lock.group": "sku", "redlatch.lock.outcome": "acquired"}


def test_the_span_of_a_lock_without_a_group_names_none(client: Client, name: str, spans: Spans) -> None:
    with traced(client.lock(name), tracer_provider=spans.provider):
        pass
    assert (spans.only().name, spans.only().attributes) == ("acquire", {"redlatch.lock.outcome": "acquired"})


@pytest.mark.parametrize(("timeout", "error", "outcome"), [(0.01, LockTimeout, "timeout"), (0, LockBusy, "busy")])
def test_a_lock_of_another_holder_fails_the_span_without_its_name(
    client: Client, name: str, spans: Spans, timeout: float, error: type[Exception], outcome: str
) -> None:
    with client.lock(name), pytest.raises(error):
        with traced(client.lock(name, timeout=timeout, group="sku"), tracer_provider=spans.provider):
            pass
    span = spans.only()
    assert span.attributes == {
        "redlatch.lock.group": "sku",
        "redlatch.lock.outcome": outcome,
        "error.type": error.__name__,
    }
    assert span.status.status_code == StatusCode.ERROR
    # The text of the error has the name of the lock.
    assert name not in span.to_json()


def test_missing_masters_fail_the_span(closed_ports: Any, spans: Spans) -> None:
    with Client(closed_ports(1), attempt_timeout=0.05) as client, pytest.raises(QuorumUnavailable):
        with traced(client.lock("x", timeout=0.1), tracer_provider=spans.provider):
            pass
    span = spans.only()
    assert span.attributes == {"redlatch.lock.outcome": "unavailable", "error.type": "QuorumUnavailable"}


def test_a_closed_client_cancels_the_span(three: list[str], spans: Spans) -> None:
    client = Client(three)
    client.close()
    with pytest.raises(ClientClosed), traced(client.lock("x"), tracer_provider=spans.provider):
        pass
    assert spans.only().attributes == {"redlatch.lock.outcome": "cancelled", "error.type": "ClientClosed"}


def test_a_misuse_is_no_outcome(client: Client, name: str, spans: Spans) -> None:
    lock = client.lock(name)
    with lock, pytest.raises(AlreadyHeld), traced(lock, tracer_provider=spans.provider):
        pass
    assert spans.only().attributes == {"error.type": "AlreadyHeld"}


def test_a_cancelled_task_cancels_the_span(three: list[str], name: str, spans: Spans) -> None:
    async def run() -> None:
        async with AsyncClient(three) as client, client.lock(name):

            async def wait() -> None:
                async with traced(client.lock(name), tracer_provider=spans.provider):
                    pass

            task = asyncio.create_task(wait())
            while not task.done() and client.stats().waiting == 0:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert spans.only().attributes == {"redlatch.lock.outcome": "cancelled", "error.type": "CancelledError"}


def test_a_name_is_shown_only_if_asked_for(client: Client, name: str, spans: Spans) -> None:
    with traced(client.lock(name), names=True, tracer_provider=spans.provider):
        pass
    assert spans.only().attributes == {"redlatch.lock.outcome": "acquired", "redlatch.lock.name": name}


@pytest.mark.parametrize("kind", ["rlock", "fair_lock", "multi_lock", "semaphore", "read"])
def test_every_kind_of_lock_can_be_traced(client: Client, name: str, spans: Spans, kind: str) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "rlock": lambda: client.rlock(name, group="sku"),
        "fair_lock": lambda: client.fair_lock(name, group="sku"),
        "multi_lock": lambda: client.multi_lock([name, f"{name}-2"], group="sku"),
        "semaphore": lambda: client.semaphore(name, 2, group="sku"),
        "read": lambda: client.rw_lock(name, group="sku").read(),
    }
    lock = makers[kind]()
    with traced(lock, names=True, tracer_provider=spans.provider):
        lock.check()
    span = spans.only()
    assert span.name == "acquire sku"
    assert span.attributes is not None
    assert name in str(span.attributes["redlatch.lock.name"])
    with pytest.raises(Exception, match="not held"):
        lock.check()


def test_a_failure_inside_a_reentrant_lock_leaves_the_outer_one(client: Client, name: str, spans: Spans) -> None:
    lock = client.rlock(name, ttl=0.2)
    with pytest.raises(LockLost), lock:
        assert lock.lock.lost.wait(PATIENCE)
        with pytest.raises(LockLost) as caught, traced(lock, tracer_provider=spans.provider):
            pass
        assert lock.count == 1
        assert not getattr(caught.value, "__notes__", [])
    assert spans.only().attributes == {"error.type": "LockLost"}


class Broken(SpanProcessor):
    """Fails at the end of each span."""

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("the disk is full")


def test_a_span_that_cannot_end_leaves_no_lock_behind(client: Client, three: list[str], name: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    with pytest.raises(OSError, match="the disk is full"), traced(client.lock(name), tracer_provider=provider):
        pass
    assert not client.lock(name).locked()

    async def run() -> None:
        async with AsyncClient(three) as other:
            with pytest.raises(OSError, match="the disk is full"):
                async with traced(other.lock(name), tracer_provider=provider):
                    pass
            assert not await other.lock(name).locked()

    asyncio.run(run())


def test_without_a_kit_a_traced_lock_is_a_lock(client: Client, name: str) -> None:
    with traced(client.lock(name)) as lock:
        lock.check()
    assert not lock.remaining()


def test_a_span_is_a_child_of_the_current_one(client: Client, name: str, spans: Spans) -> None:
    tracer = trace.get_tracer("test", tracer_provider=Spans().provider)
    with tracer.start_as_current_span("request") as parent:
        with traced(client.lock(name), tracer_provider=spans.provider):
            pass
    child = spans.only().parent
    assert child is not None
    assert child.span_id == parent.get_span_context().span_id


def test_a_lock_knows_its_group(client: Client, name: str) -> None:
    assert client.lock(name).group == ""
    assert client.lock(name, group="sku").group == "sku"
    assert client.rlock(name, group="sku").group == "sku"
    assert client.multi_lock([name], group="sku").group == "sku"
    assert client.rw_lock(name, group="sku").write().group == "sku"
    for number in range(200):
        client.lock(name, group=f"group-{number}")
    assert client.lock(name, group="one-more").group == "(others)"
