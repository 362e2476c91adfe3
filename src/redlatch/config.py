"""Masters from URLs and redis-py clients, and the checks of every argument.

redis-py parses the URLs and knows the TLS options, credentials and Sentinel; what it makes of them is
one of its `Connection` objects, which opens the socket (`Master.connect`). Everything after the open
socket is ours.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.connection as redis_connection
import redis.sentinel

from .errors import ConfigurationError

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
MAX_TTL_MS = 100 * 365 * 86_400_000  # a hundred years: sums of two such times still fit 63 bits of ns
MAX_SECONDS = MAX_TTL_MS // 1000

# Options of redis-py's pools and clients that say nothing about how a socket is opened; some refer to the pool, which
# is not to be kept alive.
_NOT_FOR_A_CONNECTION = frozenset(
    {
        "connection_class",
        "connection_pool",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "max_connections",
        "queue_class",
        "timeout",
    }
)

# TLS options that name a file, in groups that are loaded together.
_FILES = (("ssl_ca_certs",), ("ssl_certfile", "ssl_keyfile"))

# Objects of redis-py that exist once for threads and once for asyncio.
_OF_ASYNCIO = frozenset({"retry", "event_dispatcher"})


class Master:
    """One server: where it is, and how redis-py opens a socket to it.

    Attributes:
        address: "host:port" or the unix socket's path, for messages; never with user or password.
        db: the database number to SELECT.
        name: the address, with "/db" behind it where that is not 0: what all clients must agree on.
        by_db: whether another database of the same server counts as another master.
    """

    by_db = False  # `masters_of` says

    def __init__(self, kind: type, options: dict[str, Any], pool: Any = None) -> None:
        self._options = options = {key: value for key, value in options.items() if key not in _NOT_FOR_A_CONNECTION}
        self._pool = pool
        self._kind = kind
        self.db = int(options.get("db") or 0)
        if not kind_opens_files(kind):
            options.pop("path", None)  # redis-py lets a URL of any scheme have one in its query
        if "path" in options:
            self.address = str(options["path"])
        elif isinstance(pool, redis.sentinel.SentinelConnectionPool):
            self.address = f"sentinel:{pool.service_name}"
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            self.address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        self.name = f"{self.address}/{self.db}" if self.db else self.address
        self._connection(1.0)  # a bad option is refused here and not at the first connect

    def __repr__(self) -> str:
        return f"<Master {self.address}>"

    def check_files(self, where: str) -> None:
        """Refuse TLS files that cannot be used. When connecting, the error would not name the path.

        Raises:
            ConfigurationError: naming the option and the path.
        """
        options = self._options
        paths = {option: options[option] for pair in _FILES for option in pair if options.get(option)}
        if not issubclass(self._kind, redis_connection.SSLConnection):
            return
        for option, path in paths.items():
            try:
                open(path, "rb").close()
            except OSError as error:
                raise ConfigurationError(f"{where}: {option}={path!r} cannot be read: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Without a password OpenSSL would ask the terminal for one.
        loaders: tuple[Callable[..., None], ...] = (
            context.load_verify_locations,
            partial(context.load_cert_chain, password=options.get("ssl_password") or ""),
        )
        for pair, load in zip(_FILES, loaders, strict=True):
            given = {option: paths[option] for option in pair if option in paths}
            try:
                if pair[0] in given:
                    load(*given.values())
            except ssl.SSLError as error:
                what = " and ".join([f"{option}={path!r}" for option, path in given.items()])
                raise ConfigurationError(f"{where}: {what} cannot be used: {error.reason or error}") from None

    def credentials(self) -> tuple[str, ...]:
        """Return (user, password), (password,) or (); asks a credential provider anew each time."""
        provider = self._options.get("credential_provider")
        if provider is not None:
            return tuple(provider.get_credentials())
        user, password = self._options.get("username"), self._options.get("password")
        if user:
            return (str(user), str(password or ""))
        return (str(password),) if password else ()

    def connect(self, timeout: float) -> socket.socket:
        """Open a blocking socket, TLS already spoken, within `timeout` seconds.

        Raises:
            OSError, ssl.SSLError, redis.exceptions.RedisError: as the network or Sentinel has it.
        """
        connection = self._connection(timeout)
        if isinstance(self._pool, redis.sentinel.SentinelConnectionPool):
            connection.host, connection.port = self._pool.get_master_address()  # type: ignore[no-untyped-call]
        # redis-py's one call that opens a socket with all of a client's options and sends nothing. It is
        # private but the same from redis-py 3 to 8; tests/test_connect.py fails where it goes.
        return connection._connect()  # type: ignore[no-any-return]

    def _connection(self, timeout: float) -> Any:
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout}
        return self._kind(**options)


def kind_opens_files(kind: type) -> bool:
    """Tell whether redis-py's connection class is the one for unix sockets."""
    return issubclass(kind, redis_connection.UnixDomainSocketConnection)


def masters_of(masters: object, by_db: bool = False) -> list[Master]:
    """Make Masters of what a client was given.

    Args:
        masters: a URL, a redis-py client (of either face), or an iterable of them.
        by_db: whether another database of the same server counts as another master.

    Raises:
        ConfigurationError: there are none, one is malformed, or two have the same address.
    """
    if isinstance(masters, (str, bytes, redis.Redis, redis.asyncio.Redis)):
        masters = [masters]
    if not isinstance(masters, Iterable):
        raise ConfigurationError(f"masters: URLs or redis-py clients are needed, not {type(masters).__name__}")
    found = [_master_of(item, f"masters[{index}]") for index, item in enumerate(masters)]
    if not found:
        raise ConfigurationError("masters: at least one is needed, such as 'redis://127.0.0.1:6379'")
    seen: dict[str, int] = {}
    for index, master in enumerate(found):
        master.by_db = by_db
        first = seen.setdefault(master.name if by_db else master.address, index)
        if first != index:
            raise ConfigurationError(
                f"masters[{index}]: {master.name if by_db else master.address} is masters[{first}] already; "
                "a quorum needs independent servers, each named once"
            )
    return found


def _master_of(item: object, where: str) -> Master:
    try:
        if isinstance(item, bytes):
            item = item.decode()
        master = None
        if isinstance(item, str):
            master = _from_url(item, where)
        elif isinstance(item, (redis.Redis, redis.asyncio.Redis)):
            master = _from_client(item)
        if master is not None:
            master.check_files(where)
            return master
    except ConfigurationError:
        raise
    except (ValueError, TypeError, redis.RedisError) as error:
        raise ConfigurationError(f"{where}: {_without_secrets(error, item)}") from None
    raise ConfigurationError(f"{where}: a URL or a redis-py client is needed, not {type(item).__name__}")


def _without_secrets(error: Exception, item: object) -> str:
    """Return what redis-py or urllib found wrong, unless the URL holds credentials, which they may quote a part of."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is not None:
        return f"no connection has the option {unknown[1]!r}"
    if isinstance(item, str) and ("@" in item or "password=" in item):
        return "the URL is malformed; what is special in a password must be percent-encoded"
    return f"the URL or client is malformed: {error}"


def _from_url(url: str, where: str) -> Master:
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.lower() not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        shown = f" {scheme!r}" if scheme.isalnum() else ""  # else it may be credentials in the wrong place
        what = f"unknown scheme{shown}" if colon else "a URL without a scheme"
        raise ConfigurationError(f"{where}: {what}; one of {known} is needed, such as redis://localhost:6379")
    scheme = scheme.lower()
    if scheme != "unix":
        path = urlsplit(f"redis://{rest}").path.strip("/")
        if path and not path.isdecimal():
            # Not quoted: a "/" in a password that is not percent-encoded makes a path of its rest.
            raise ConfigurationError(
                f"{where}: what follows the first '/' of a URL must be a database number; in a password it is %2F"
            )
    options: dict[str, Any] = redis_connection.parse_url(  # type: ignore[no-untyped-call]
        f"{scheme.replace('valkey', 'redis')}://{rest}"
    )
    kind = options.pop("connection_class", redis_connection.Connection)
    if kind_opens_files(kind) and not options.get("path"):
        raise ConfigurationError(f"{where}: unix:// needs the socket's path, such as unix:///run/redis.sock")
    if issubclass(kind, redis_connection.SSLConnection):
        options = _verifying(options)
    return Master(kind, options)


def _verifying(options: dict[str, Any]) -> dict[str, Any]:
    """Have TLS verify chain and host name where the options do not say otherwise (redis-py < 6 did not)."""
    checks = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
    return checks | options


def _from_client(client: Any) -> Master:
    """Take over a redis-py client's settings; the client itself is neither used nor closed."""
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    name = pool.connection_class.__name__
    if "Unix" in name:
        return Master(redis_connection.UnixDomainSocketConnection, options)
    if isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool):
        pool = _asked_by_threads(pool)
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):  # not the client's own, which we do not keep alive
        pool = redis.sentinel.SentinelConnectionPool(  # type: ignore[no-untyped-call]
            pool.service_name, pool.sentinel_manager
        )
        kind = redis_connection.SSLConnection if "SSL" in name else redis_connection.Connection
        return Master(kind, options, pool)
    return Master(redis_connection.SSLConnection if "SSL" in name else redis_connection.Connection, options)


def _asked_by_threads(pool: Any) -> redis.sentinel.SentinelConnectionPool:
    """Return what asks the same sentinels as an asyncio client does, but from the threads that open our sockets."""
    manager = pool.sentinel_manager
    known = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    options = {name: value for name, value in manager.sentinel_kwargs.items() if name not in _OF_ASYNCIO}
    sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        [(kwargs["host"], kwargs["port"]) for kwargs in known],
        manager.min_other_sentinels,
        options,
        manager._force_master_ip,
    )
    return redis.sentinel.SentinelConnectionPool(pool.service_name, sentinel)  # type: ignore[no-untyped-call]


def ttl_ms_of(ttl: object, drift_factor: float, max_ttl_ms: int = MAX_TTL_MS) -> int:
    """Return a time to live in whole milliseconds, as the masters count it.

    Raises:
        TypeError: it is no number.
        ConfigurationError: it is not finite, below 1 ms, above a hundred years or what the guard allows, or so short
            that the drift allowance eats it up.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl: seconds as a number are needed, not {type(ttl).__name__}")
    # The first comparison also keeps NaN, infinities and huge integers from the arithmetic of the second.
    if not 0 < ttl <= MAX_SECONDS or (milliseconds := round(ttl * 1000)) < 1:
        raise ConfigurationError(f"ttl: a finite number of seconds, 0.001 to {MAX_SECONDS}, is needed; got {ttl}")
    if milliseconds > max_ttl_ms:
        raise ConfigurationError(
            f"ttl: {ttl} s is above the {max_ttl_ms / 1000:g} s of the guard; take a shorter one and auto_renew=True, "
            f"or give every client of these masters guard=Guard(max_ttl={ttl})"
        )
    if milliseconds <= milliseconds * drift_factor + 2:
        raise ConfigurationError(
            f"ttl: {ttl} s leaves no validity after the drift allowance of "
            f"{milliseconds * drift_factor + 2:.2f} ms; take a longer one"
        )
    return milliseconds


def timeout_of(timeout: object, blocking: bool) -> float | None:
    """Return how many seconds to wait for a lock; None is for ever.

    Raises:
        TypeError: it is no number, or `blocking` is no bool.
        ConfigurationError: it is negative or NaN, or given for a call that does not block.
    """
    if not isinstance(blocking, bool):
        raise TypeError(f"blocking: True or False is needed, not {type(blocking).__name__}; was timeout= meant?")
    if not blocking:
        if timeout is not None:
            raise ConfigurationError("timeout: a call with blocking=False takes none")
        return 0.0
    return seconds_of("timeout", timeout)


def seconds_of(what: str, value: object) -> float | None:
    """Return a waiting time in seconds, None for "no bound" or a hundred years; `what` names the argument in errors."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what}: seconds as a number or None are needed, not {type(value).__name__}")
    if not value >= 0:  # NaN is not, either
        raise ConfigurationError(f"{what}: seconds of at least 0, or None, are needed; got {value}")
    return None if value > MAX_SECONDS else float(value)
