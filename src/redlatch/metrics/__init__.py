"""The figures of clients for Prometheus and OpenTelemetry, and spans for single acquires.

They only read `Client.stats` when Prometheus scrapes or an exporter collects. The labels are the groups of locks
(``group=``) and the masters, never the name of a lock. `docs/metrics.md` has all figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from .spans import AsyncTraced, LoopLock, SyncLock, Traced
    from .totals import Export, Measured

__all__ = ["otel", "prometheus", "traced"]


def prometheus(client: Measured, group: str = "", registry: CollectorRegistry | None = None) -> Export:
    """Show the figures of a client in a registry of prometheus_client.

    Several clients of one registry are added up by group and master, and a counter keeps what a closed client has
    counted. A master is up if it is up for all of them. It keeps only a weak reference to the client.

    Args:
        client: a `Client` or an `AsyncClient`.
        group: the group of locks that have none. Default "".
        registry: where to register the collector. Default `prometheus_client.REGISTRY`.

    Returns:
        An object whose `close`, or whose ``with``, ends the export.

    Raises:
        ImportError: prometheus_client is missing; the extra "prometheus" has it.
        ConfigurationError: the registry has this client already.
        ValueError: the registry has other families of these names.
    """
    from .collector import export

    return export(client, group, registry)


def otel(client: Measured, group: str = "", meter_provider: MeterProvider | None = None) -> Export:
    """Show the figures of a client in the metrics of OpenTelemetry, added up as for `prometheus`.

    OpenTelemetry has no observable histogram. So each collection records the durations since the last one, each as a
    value within its bucket. That takes 7 us per duration. If there are more than 20,000, it records a share of them
    that has the same quantiles; the counter ``redlatch.lock.acquire.count`` stays exact.

    Args:
        client, group: as for `prometheus`.
        meter_provider: provides the meter. Default the global one, which may be set later.

    Returns:
        An object whose `close`, or whose ``with``, ends the export.

    Raises:
        ImportError: opentelemetry-api is missing; the extra "otel" has it.
        ConfigurationError: the provider has this client already.
    """
    from .meters import export

    return export(client, group, meter_provider)


@overload
def traced(lock: SyncLock, *, names: bool = ..., tracer_provider: TracerProvider | None = ...) -> Traced[SyncLock]: ...
@overload
def traced(
    lock: LoopLock, *, names: bool = ..., tracer_provider: TracerProvider | None = ...
) -> AsyncTraced[LoopLock]: ...
def traced(lock: Any, *, names: bool = False, tracer_provider: TracerProvider | None = None) -> Any:
    """Give the acquire of a lock a span of OpenTelemetry: ``with traced(lock) as lock:``, or ``async with``.

    The span is named "acquire" and the group of the lock, and does not cover the body. It has the group, the outcome,
    and the class of an error, but never its text, which contains the name of the lock.

    Args:
        lock: a lock of any kind.
        names: if True, the span has the name of the lock as ``redlatch.lock.name``. Default False.
        tracer_provider: provides the tracer. Default the global one.

    Raises:
        ImportError: opentelemetry-api is missing; the extra "otel" has it.
    """
    from .spans import Acquiring, AsyncTraced, Traced

    kind = AsyncTraced if hasattr(lock, "__aenter__") else Traced
    return kind(lock, Acquiring(lock, names, tracer_provider))
