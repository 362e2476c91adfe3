"""Masters from URLs and redis-py clients, and the checks of arguments.

redis-py parses the URLs and handles TLS options, credentials and Sentinel. It makes a `Connection` object, which opens
the socket (`Master.connect`). redlatch does everything after that.
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

# A hundred years. The sum of two such times, in nanoseconds, still fits into 63 bits.
MAX_TTL_MS = 100 * 365 * 86_400_000
MAX_SECONDS = MAX_TTL_MS // 1000

# Options of redis-py's pools and clients that a connection does not need. Some refer to the pool, and a Master must not
# keep the pool alive.
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

# TLS options with the path of a file. The files of one group are loaded together.
_FILES = (("ssl_ca_certs",), ("ssl_certfile", "ssl_keyfile"))

# Options whose asyncio objects do not work with threads.
_OF_ASYNCIO = frozenset({"retry", "event_dispatcher"})


class Master:
    """One server: its address, and how redis-py opens a socket to it.

    Attributes:
        address: "host:port" or the path of the unix socket, for messages; never with user or password.
        db: the database number to SELECT.
        name: the address, followed by "/db" if that is not 0. All clients must use the same names.
        by_db: whether another database of the same server counts as another master; `masters_of` sets it.
    """

    by_db = False

    def __init__(self, kind: type, options: dict[str, Any], pool: Any = None) -> None:
        self._options = options = {key: value for key, value in options.items() if key not in _NOT_FOR_A_CONNECTION}
        self._pool = pool
        self._kind = kind
        self.db = int(options.get("db") or 0)
        if not kind_opens_files(kind):
            # redis-py accepts a path in the query of any URL.
            options.pop("path", None)
        if "path" in options:
            self.address = str(options["path"])
        elif isinstance(pool, redis.sentinel.SentinelConnectionPool):
            self.address = f"sentinel:{pool.service_name}"
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            self.address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        self.name = f"{self.address}/{self.db}" if self.db else self.address
        # Refuse bad options here instead of at the first connect.
        self._connection(1.0)

    def __repr__(self) -> str:
        return f"<Master {self.address}>"

    def check_files(self, where: str) -> None:
        """Refuse TLS files that cannot be used. At the connect, the error would not name the path.

        Args:
            where: the argument that names this master, for the error.

        Raises:
            ConfigurationError: a file cannot be used; the message names the option and the path.
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
        """Return (user, password), (password,) or (). Every call asks the credential provider, if there is one."""
        provider = self._options.get("credential_provider")
        if provider is not None:
            return tuple(provider.get_credentials())
        user, password = self._options.get("username"), self._options.get("password")
        if user:
            return (str(user), str(password or ""))
        return (str(password),) if password else ()

    def connect(self, timeout: float) -> socket.socket:
        """Open a blocking socket within `timeout` seconds, including the TLS handshake.

        Raises:
            OSError: the network refused the connection.
            ssl.SSLError: the TLS handshake failed.
            redis.exceptions.RedisError: Sentinel or redis-py refused.
        """
        connection = self._connection(timeout)
        if isinstance(self._pool, redis.sentinel.SentinelConnectionPool):
            connection.host, connection.port = self._pool.get_master_address()
        # The only call of redis-py that opens a socket with all the options of a client and sends nothing. It is
        # private, but the same from redis-py 3 to 8. tests/test_config.py fails if it disappears.
        return connection._connect()  # type: ignore[no-any-return]

    def _connection(self, timeout: float) -> Any:
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout}
        return self._kind(**options)


def kind_opens_files(kind: type) -> bool:
    """Return whether redis-py's connection class is the one for unix sockets."""
    return issubclass(kind, redis_connection.UnixDomainSocketConnection)


def masters_of(masters: object, by_db: bool = False) -> list[Master]:
    """Return the masters that the arguments of a client name.

    Args:
        masters: a URL, a redis-py client (for threads or asyncio), or an iterable of them.
        by_db: whether another database of the same server counts as another master.

    Raises:
        ConfigurationError: there are no masters, one is malformed, or two have the same address.
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
    """Return the error of redis-py or urllib, or a general text if it may quote credentials of the URL."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is not None:
        return f"no connection has the option {unknown[1]!r}"
    if isinstance(item, str) and ("@" in item or "password=" in item):
        return "the URL is malformed; special characters in a password must be percent-encoded"
    return f"the URL or client is malformed: {error}"


def _from_url(url: str, where: str) -> Master:
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.lower() not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        # Only an alphanumeric scheme is shown. Any other text may be credentials in the wrong place.
        shown = f" {scheme!r}" if scheme.isalnum() else ""
        what = f"unknown scheme{shown}" if colon else "a URL without a scheme"
        raise ConfigurationError(f"{where}: {what}; one of {known} is needed, such as redis://localhost:6379")
    scheme = scheme.lower()
    if scheme != "unix":
        path = urlsplit(f"redis://{rest}").path.strip("/")
        if path and not path.isdecimal():
            # The message does not quote the path. If a "/" in a password is not percent-encoded, the path contains the
            # rest of the password.
            raise ConfigurationError(
                f"{where}: the text after the first '/' must be a database number; write a '/' in a password as %2F"
            )
    options: dict[str, Any] = redis_connection.parse_url(f"{scheme.replace('valkey', 'redis')}://{rest}")
    kind = options.pop("connection_class", redis_connection.Connection)
    if kind_opens_files(kind) and not options.get("path"):
        raise ConfigurationError(f"{where}: unix:// needs the socket's path, such as unix:///run/redis.sock")
    if issubclass(kind, redis_connection.SSLConnection):
        options = _verifying(options)
    return Master(kind, options)


def _verifying(options: dict[str, Any]) -> dict[str, Any]:
    """Let TLS verify chain and host name unless the options say otherwise (redis-py < 6 did not verify by default)."""
    checks = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
    return checks | options


def _from_client(client: Any) -> Master:
    """Copy the settings of a redis-py client. The client itself is neither used nor closed."""
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    name = pool.connection_class.__name__
    if "Unix" in name:
        return Master(redis_connection.UnixDomainSocketConnection, options)
    if isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool):
        pool = _asked_by_threads(pool)
    # A new pool, because the Master must not keep the pool of the client alive.
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        pool = redis.sentinel.SentinelConnectionPool(pool.service_name, pool.sentinel_manager)
        kind = redis_connection.SSLConnection if "SSL" in name else redis_connection.Connection
        return Master(kind, options, pool)
    return Master(redis_connection.SSLConnection if "SSL" in name else redis_connection.Connection, options)


def _asked_by_threads(pool: Any) -> redis.sentinel.SentinelConnectionPool:
    """Return a pool for threads that asks the same sentinels as the pool of an asyncio client."""
    manager = pool.sentinel_manager
    known = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    options = {name: value for name, value in manager.sentinel_kwargs.items() if name not in _OF_ASYNCIO}
    sentinel = redis.sentinel.Sentinel(
        [(kwargs["host"], kwargs["port"]) for kwargs in known],
        manager.min_other_sentinels,
        options,
        manager._force_master_ip,
    )
    return redis.sentinel.SentinelConnectionPool(pool.service_name, sentinel)


def ttl_ms_of(ttl: object, drift_factor: float, max_ttl_ms: int = MAX_TTL_MS) -> int:
    """Return a ttl in whole milliseconds, the unit of the masters.

    Args:
        ttl: the ttl in seconds.
        drift_factor: the allowance for drift, as a fraction of the ttl.
        max_ttl_ms: the longest allowed ttl in milliseconds.

    Raises:
        TypeError: the ttl is not a number.
        ConfigurationError: the ttl is not finite, is below 1 ms, is above a hundred years or above `max_ttl_ms`, or is
            not above its drift allowance.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl: seconds as a number are needed, not {type(ttl).__name__}")
    # The first comparison also refuses NaN, infinities and huge integers, so that the second can compute with the ttl.
    if not 0 < ttl <= MAX_SECONDS or (milliseconds := round(ttl * 1000)) < 1:
        raise ConfigurationError(f"ttl: a finite number of seconds, 0.001 to {MAX_SECONDS}, is needed; got {ttl}")
    if milliseconds > max_ttl_ms:
        raise ConfigurationError(
            f"ttl: {ttl} s is above the {max_ttl_ms / 1000:g} s of the guard; use a shorter ttl with auto_renew=True, "
            f"or give every client of these masters guard=Guard(max_ttl={ttl})"
        )
    if milliseconds <= milliseconds * drift_factor + 2:
        raise ConfigurationError(
            f"ttl: {ttl} s leaves no validity after the drift allowance of "
            f"{milliseconds * drift_factor + 2:.2f} ms; use a longer one"
        )
    return milliseconds


def timeout_of(timeout: object, blocking: bool) -> float | None:
    """Return how many seconds to wait for a lock, or None for no limit.

    Args:
        timeout: the longest wait in seconds, or None for no limit.
        blocking: whether the call waits at all.

    Raises:
        TypeError: `timeout` is not a number, or `blocking` is not a bool.
        ConfigurationError: `timeout` is negative or NaN, or is given although `blocking` is False.
    """
    if not isinstance(blocking, bool):
        raise TypeError(f"blocking: True or False is needed, not {type(blocking).__name__}; was timeout= meant?")
    if not blocking:
        if timeout is not None:
            raise ConfigurationError("timeout: must not be given with blocking=False")
        return 0.0
    return seconds_of("timeout", timeout)


def seconds_of(what: str, value: object) -> float | None:
    """Return a waiting time in seconds, or None for no limit.

    Args:
        what: the name of the argument, for errors.
        value: the time in seconds, or None. More than a hundred years counts as no limit.

    Raises:
        TypeError: `value` is not a number.
        ConfigurationError: `value` is negative or NaN.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what}: seconds as a number or None are needed, not {type(value).__name__}")
    # Written as `not >=` to refuse NaN, too.
    if not value >= 0:
        raise ConfigurationError(f"{what}: seconds of at least 0, or None, are needed; got {value}")
    return None if value > MAX_SECONDS else float(value)
