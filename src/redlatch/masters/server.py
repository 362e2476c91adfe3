"""One server: its address, its credentials, and how redis-py opens a socket to it."""

from __future__ import annotations

# redis-py asks for its own version when it makes the first connection, which imports this. A client imports nothing
# later (see `impl.load`).
import email.parser  # noqa: F401
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError

# Options of redis-py's pools and clients that a connection does not need. Some refer to the pool, and a Server must not
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


class Server:
    """One server.

    Args:
        kind: redis-py's class of connections for threads.
        options: the arguments for it.

    Attributes:
        address: "host:port" or the path of the unix socket, for messages; never with user or password.
    """

    def __init__(self, kind: type, options: dict[str, Any]) -> None:
        self._options = options = {key: value for key, value in options.items() if key not in _NOT_FOR_A_CONNECTION}
        self._kind = kind
        if not kind_opens_files(kind):
            # redis-py accepts a path in the query of any URL.
            options.pop("path", None)
        if "path" in options:
            self.address = str(options["path"])
        else:
            self.address = address_of(options.get("host", "localhost"), options.get("port", 6379))
        # Refuse bad options here instead of at the first connect.
        self._connection(1.0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def check_files(self, where: str) -> None:
        """Refuse TLS files that cannot be used. At the connect, the error would not name the path.

        Args:
            where: the argument that names this server, for the error.

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
            redis.exceptions.RedisError: redis-py refused.
        """
        return open_socket(self._connection(timeout))

    def client(self, timeout: float, at: tuple[str, int] | None = None) -> redis.Redis:
        """Return a client of redis-py for this server, with one connection.

        Args:
            timeout: for each command, in seconds.
            at: another host and port; None for its own.
        """
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout, "retry": None}
        if at is not None:
            options |= {"host": at[0], "port": at[1]}
        return redis.Redis(
            connection_pool=redis.ConnectionPool(connection_class=self._kind, max_connections=1, **options),
        )

    def _connection(self, timeout: float) -> Any:
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout}
        return self._kind(**options)


def open_socket(connection: Any) -> socket.socket:
    """Open the socket of a redis-py connection, which itself is not used any further."""
    # The only call of redis-py that opens a socket with all the options of a client and sends nothing. It is private,
    # but the same from redis-py 3 to 8. tests/test_config.py fails if it disappears.
    return connection._connect()  # type: ignore[no-any-return]


def address_of(host: object, port: object) -> str:
    """Return "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def kind_opens_files(kind: type) -> bool:
    """Return whether redis-py's connection class is the one for unix sockets."""
    return issubclass(kind, redis_connection.UnixDomainSocketConnection)
