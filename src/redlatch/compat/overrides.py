"""Detect redis-py clients that may change commands, as kombu's `PrefixedStrictRedis` changes keys.

Drop-ins send their own commands, so they would lock another key than the original. Instrumentation (OpenTelemetry,
Sentry and others) replaces methods of redis-py's classes, but changes no commands, so it is ignored here.
"""

from __future__ import annotations

import weakref
from typing import Any

import redis
import redis.asyncio

# The methods that the originals call, directly or indirectly.
_CALLED = frozenset(
    {
        "__getattribute__",
        "_execute_command",
        "_send_command_parse_response",
        "eval",
        "evalsha",
        "execute_command",
        "get",
        "get_encoder",
        "parse_response",
        "pipeline",
        "register_script",
        "script_load",
        "set",
        "transaction",
    }
)

_PLAIN = frozenset({*redis.Redis.__mro__, *redis.asyncio.Redis.__mro__})

_INSTRUMENTATION = frozenset({"opentelemetry", "sentry_sdk"})

_THREADS, _ASYNCIO = redis.Redis, redis.asyncio.Redis
_changes_nothing = _CALLED.isdisjoint

_known: weakref.WeakKeyDictionary[type[Any], str] = weakref.WeakKeyDictionary()


def override_of(client: Any) -> str:
    """Return the name of an override that may change a client's commands; "" if there is none."""
    kind = type(client)
    if kind is not _THREADS and kind is not _ASYNCIO:
        found = _known.get(kind)
        if found is None:
            found = _known[kind] = _override_of(kind)
        if found:
            return found
    own = client.__dict__
    return "" if _changes_nothing(own) else _override_in(client, own)


def _override_of(kind: type[Any]) -> str:
    if not issubclass(kind, (redis.Redis, redis.asyncio.Redis)):
        return f"{kind.__qualname__}, which is not a class of redis-py"
    for base in kind.__mro__:
        if base not in _PLAIN:
            for name in sorted(_CALLED.intersection(vars(base))):
                return f"{base.__qualname__}.{name}"
    return ""


def _override_in(client: Any, own: dict[str, Any]) -> str:
    for name in sorted(_CALLED.intersection(own)):
        if not _is_instrumented(client, name, own[name]):
            return f"its attribute {name}"
    return ""


def _is_instrumented(client: Any, name: str, attribute: Any) -> bool:
    """Return True if an attribute is the client's own method, wrapped only by instrumentation."""
    while _tool_of(attribute) in _INSTRUMENTATION:
        attribute = getattr(attribute, "__wrapped__", None)
    return getattr(attribute, "__self__", None) is client and getattr(attribute, "__name__", "") == name


def _tool_of(attribute: Any) -> str:
    """Return the package of a wrapper. A wrapt wrapper shows the wrapped module."""
    made_by = getattr(attribute, "_self_wrapper", attribute)
    return str(getattr(made_by, "__module__", "")).partition(".")[0]
