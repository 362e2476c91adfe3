"""The options of clients and of locks: the type, the default and the check of each. `Client` explains them."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import update_wrapper
from types import NoneType
from typing import Any, ClassVar, Concatenate, ForwardRef, Literal, ParamSpec, TypedDict, TypeVar

import redis
import redis.asyncio

from .config import SWITCH, attempt_ns_of, check_type, heartbeat_ns_of, patience_ns_of, seconds_of, ttl_ms_of
from .errors import ConfigurationError
from .guard.settings import DEFAULT_GUARD, Guard
from .loss import Loss, OnLost, on_lost_of
from .masters.cluster import HostMap
from .quorum.policy import Handoff, Retry
from .votes.key import prefix_of
from .votes.label import LONGEST
from .votes.units import UNBOUNDED
from .wire.dial.scripting import Scripts, scripts_of

MasterLike = str | redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster
Masters = MasterLike | Iterable[MasterLike]
Wakeups = Literal["auto", "poll"]

Arguments = ParamSpec("Arguments")
AnyOptions = TypeVar("AnyOptions", bound="Options")
AnyMaker = TypeVar("AnyMaker", bound=Callable[..., Any])

# --- of clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Options:
    """The options of every client; `of_driver` has those that only one of the drivers has."""

    awaits: ClassVar[bool]

    masters: Masters
    _: KW_ONLY
    ttl: float = 10.0
    timeout: float | None = None
    patience: float = 0.0
    prefix: str | bytes = ""
    drift_factor: float = 0.01
    attempt_timeout: float | None = None
    retry: Retry | None = None
    wait_release: bool = True
    on_lost: OnLost | None = field(default=None, init=False)
    wakeups: Wakeups = "auto"
    handoff: Handoff | None = None
    max_waiters: int | None = None
    refuse_late: bool = False
    guard: Guard | None = DEFAULT_GUARD
    next: Masters | None = None
    host_map: HostMap | None = None
    owner: str | None = None
    scripts: Scripts = "auto"
    synced: bool | int = False
    heartbeat: float | None = None

    # The checks make these.
    ttl_ms: int = field(init=False)
    max_ttl_ms: int = field(init=False)
    attempt_ns: int | None = field(init=False)
    patience_ns: int = field(init=False)
    heartbeat_ns: int = field(init=False)
    replicas: int = field(init=False)
    key_prefix: bytes = field(init=False)
    of_driver: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_type("drift_factor", self.drift_factor, (int, float), "a number")
        if not 0 <= self.drift_factor < 1:
            raise ConfigurationError(
                f"drift_factor: a share of the ttl from 0 to below 1 is needed, got {self.drift_factor}"
            )
        check_type("retry", self.retry, (Retry, NoneType), "a redlatch.Retry")
        check_type("wait_release", self.wait_release, bool, SWITCH)
        if self.wakeups not in ("auto", "poll"):
            raise ConfigurationError(f"wakeups: 'auto' or 'poll' is needed, got {self.wakeups!r}")
        check_type("handoff", self.handoff, (Handoff, NoneType), "a redlatch.Handoff")
        check_type("max_waiters", self.max_waiters, (int, NoneType), "a whole number, or None,")
        if self.max_waiters is not None and not 0 <= self.max_waiters < UNBOUNDED:
            raise ConfigurationError(f"max_waiters: at least 0, or None, is needed; got {self.max_waiters}")
        check_type("refuse_late", self.refuse_late, bool, SWITCH)
        check_type("guard", self.guard, (Guard, NoneType), "a redlatch.Guard or None")
        owner_name(self.owner)
        max_ttl_ms = UNBOUNDED if self.guard is None else self.guard.max_ttl_ms
        # The dataclass is frozen, so an assignment would fail.
        vars(self).update(
            ttl_ms=ttl_ms_of(self.ttl, self.drift_factor, max_ttl_ms),
            max_ttl_ms=max_ttl_ms,
            timeout=seconds_of("timeout", self.timeout),
            patience_ns=patience_ns_of(self.patience),
            key_prefix=prefix_of(self.prefix),
            attempt_ns=attempt_ns_of(self.attempt_timeout),
            on_lost=on_lost_of(self.on_lost, self.awaits),
            scripts=scripts_of(self.scripts),
            replicas=replicas_of(self.synced, self.scripts),
            heartbeat_ns=heartbeat_ns_of(self.heartbeat),
        )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ClientOptions(Options):
    awaits = False

    on_lost: Callable[[Any, Loss], None] | None = None
    gil_patience: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds = seconds_of("gil_patience", self.gil_patience)
        self.of_driver["gil_patience_ns"] = -1 if seconds is None else int(seconds * 1e9)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AsyncClientOptions(Options):
    awaits = True

    on_lost: Callable[[Any, Loss], Awaitable[object] | None] | None = None


def replicas_of(synced: object, scripts: object) -> int:
    """Return how many replicas must have a lock: 0 for none, -1 for all."""
    if not isinstance(synced, int):
        raise TypeError(f"synced: True, False or a number of replicas is needed, not {type(synced).__name__}")
    if synced < 0:
        raise ConfigurationError(f"synced: True, False or a number of replicas is needed, got {synced}")
    if synced and scripts == "watch":
        raise ConfigurationError("synced: it needs scripts, but this client was made with scripts='watch'")
    return -1 if synced is True else int(synced)


def owner_name(owner: str | None) -> str:
    """Return whose client this is, as holders and markers say; None stands for the host and the process."""
    if owner is None:
        pid = f":{os.getpid()}"
        return socket.gethostname().encode()[: LONGEST - len(pid)].decode(errors="ignore") + pid
    check_type("owner", owner, str, "a name as str")
    if len(owner.encode(errors="replace")) > LONGEST or not owner.isprintable():
        raise ConfigurationError(f"owner: a name of at most {LONGEST} bytes that can be printed is needed")
    return owner


def takes(
    options: Callable[Arguments, AnyOptions],
) -> Callable[[Callable[[Any, AnyOptions], None]], Callable[Concatenate[Any, Arguments], None]]:
    """Let a constructor take the fields of these options as its arguments."""
    make: Any = options

    def decorate(construct: Callable[[Any, AnyOptions], None]) -> Callable[Concatenate[Any, Arguments], None]:
        # Errors about arguments name the client.
        make.__init__.__qualname__ = construct.__qualname__

        def init(client: Any, /, *args: Arguments.args, **given: Arguments.kwargs) -> None:
            construct(client, options(*args, **given))

        update_wrapper(init, make.__init__)
        return init

    return decorate


# --- of locks ------------------------------------------------------------------------------------------

# The default of the others is None.
_DEFAULTS = {"auto_renew": False, "cancel_on_loss": False, "fence": False, "fair": False}


class AllLockOptions(TypedDict, total=False):
    timeout: float | None
    auto_renew: bool
    max_hold: float | None
    group: str | None


class LockOptions(AllLockOptions, total=False):
    on_lost: Callable[[Any, Loss], None] | None


class AsyncLockOptions(AllLockOptions, total=False):
    on_lost: Callable[[Any, Loss], Awaitable[object] | None] | None
    cancel_on_loss: bool


class PlainOptions(LockOptions, total=False):
    fence: bool
    fair: bool


class AsyncPlainOptions(AsyncLockOptions, total=False):
    fence: bool
    fair: bool


def spelled_out(options: type[Any]) -> Callable[[AnyMaker], AnyMaker]:
    """Let `inspect.signature`, and so `help` and mocks, name each option of a function.

    The function itself takes them as ``**options``: eight defaults that a call does not give cost 1,000 instructions.
    """

    def decorate(function: AnyMaker) -> AnyMaker:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        named = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=_text_of(kind)
            )
            for name, kind in options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
        return function

    return decorate


def _text_of(annotation: Any) -> Any:
    # TypedDict wraps the text, and `help` would show that.
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def check_options(given: Mapping[str, object], allowed: Collection[str]) -> None:
    """Refuse an unknown option, and a value that should be True or False."""
    for name, value in given.items():
        if name not in allowed:
            raise TypeError(f"{name}: there is no such option; the options are {', '.join(allowed)}")
        if name in _DEFAULTS:
            check_type(name, value, bool, SWITCH)


def check_group(group: object) -> None:
    # A label that cannot be exported would end each scrape.
    if not isinstance(group, str):
        raise TypeError(f"group: a str or None is needed, not {type(group).__name__}")
    try:
        group.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"group: {group!r} has characters that UTF-8 does not have") from error
