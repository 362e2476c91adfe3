"""One server: its address, its credentials, and how redis-py opens a socket to it."""

from __future__ import annotations

# redis-py imports this for its first connection. A client imports nothing later (see `impl.load`).
import email.parser  # noqa: F401
import os
import re
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.masters import settings

SOME_NODES = "redis+cluster:// and some of its nodes, such as redis+cluster://10.0.0.1,10.0.0.2"


def whole_cluster(url: str) -> str:
    return (
        "a node has only some of the names. Give the whole cluster as one master: write "
        f"{url}, or give a redis.RedisCluster"
    )


WHOLE_CLUSTER = whole_cluster(SOME_NODES)

_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(?:%[\w.-]+)?")

_CARRIES = ("send", "sendall", "sendmsg", "recv", "recv_into", "recvmsg", "fileno", "detach")

# TLS options with a path. The files of one group are loaded together.
_FILES = (("ssl_ca_certs",), ("ssl_certfile", "ssl_keyfile"))


class Server:
    """One server. `kind` is redis-py's connection class, or a subclass; `where` names the server in errors."""

    def __init__(self, kind: type, options: dict[str, Any], where: str = "masters") -> None:
        self._options = given = settings.for_connection(kind, options, where)
        self._kind = kind
        self.client_name = settings.client_name_of(options, where)
        self.resp2 = settings.is_resp2(options, where)
        if "path" in given:
            self.address = str(given["path"])
        else:
            self.address = address_of(given.get("host", "localhost"), given.get("port", 6379))
        self._try_options(where)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    @property
    def on_unix_socket(self) -> bool:
        return kind_opens_files(self._kind)

    def check_files(self, where: str) -> None:
        # redis-py's error would name neither option nor path.
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
        _check_tls_values(context, options, where)

    def credentials(self) -> tuple[str | bytes, ...]:
        """Return (user, password), (password,) or (), perhaps from the credential provider."""
        provider = self._options.get("credential_provider")
        if provider is not None:
            return tuple(provider.get_credentials())
        user, password = self._options.get("username"), self._options.get("password")
        if user:
            return (user, password or "")
        return (password,) if password else ()

    def connect(self, timeout: float) -> socket.socket:
        """Open a blocking socket within `timeout` seconds, including the TLS handshake."""
        return open_socket(self._connection(timeout))

    def client(self, timeout: float, at: tuple[str, int] | None = None) -> redis.Redis:
        """Return a redis-py client with one connection, perhaps to another address."""
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout, "retry": None}
        if at is not None:
            options |= {"host": at[0], "port": at[1]}
        return redis.Redis(
            connection_pool=redis.ConnectionPool(connection_class=self._kind, max_connections=1, **options),
        )

    def _try_options(self, where: str) -> None:
        # Otherwise redis-py would refuse these options at the first connect. This opens no socket.
        host = self._options.get("host")
        if host is not None:
            check_host(str(host), where)
        try:
            self._connection(1.0)
        except Exception as error:
            if not settings.is_of_redis_py(self._kind):
                text = f"{where}: the connection_class {self._kind.__qualname__} cannot be made with these settings"
                raise ConfigurationError(f"{text} ({type(error).__name__})") from error
            for name, value in self._options.items():
                if not _accepts(self._kind, name, value):
                    raise settings.wrong_value(name, where) from None
            raise

    def _connection(self, timeout: float) -> Any:
        options = self._options | {"socket_connect_timeout": timeout, "socket_timeout": timeout}
        return self._kind(**options)


def open_socket(connection: Any) -> socket.socket:
    # Only this call of redis-py opens a socket with all options and sends nothing. It is private, but the same from
    # redis-py 3 to 8. tests/test_config.py fails if it disappears.
    sock = connection._connect()
    _check_socket(sock, type(connection))
    return sock  # type: ignore[no-any-return]


def _check_socket(sock: Any, kind: type) -> None:
    # The engine uses the descriptor, and would skip methods in Python, such as a proxy's.
    if isinstance(sock, ssl.SSLSocket):
        return
    changed = [name for name in _CARRIES if getattr(type(sock), name, None) is not getattr(socket.socket, name)]
    if changed:
        if callable(getattr(sock, "close", None)):
            sock.close()
        raise MasterRefused(
            f"{kind.__qualname__}._connect() returned {type(sock).__qualname__}, with its own {changed[0]}(); "
            "return a socket.socket or an ssl.SSLSocket that is connected (for PySocks: "
            "socket.socket(fileno=sock.detach()))"
        )


def _check_tls_values(context: ssl.SSLContext, options: dict[str, Any], where: str) -> None:
    uses: dict[str, Callable[[Any], object]] = {
        "ssl_ca_data": lambda data: context.load_verify_locations(cadata=data),
        "ssl_ca_path": os.listdir,
        "ssl_ciphers": context.set_ciphers,
        "ssl_exclude_verify_flags": lambda flags: [context.verify_flags & ~flag for flag in flags],
        "ssl_include_verify_flags": lambda flags: [context.verify_flags | flag for flag in flags],
        "ssl_min_version": ssl.TLSVersion,
    }
    for option, use in uses.items():
        value = options.get(option)
        if value is None:
            continue
        try:
            use(value)
        except (OSError, TypeError, ValueError):
            raise settings.wrong_value(option, where) from None


def check_host(host: str, where: str) -> None:
    # The error does not repeat the host, which may be a part of a password.
    problem = ""
    if "," in host:
        problem = "several hosts in one URL; write one URL for each, such as redis://a,redis://b,redis://c"
    elif any([mark in host for mark in "${}<>"]) or re.fullmatch(r"%\w+%", host):
        problem = "the host has a placeholder, such as ${HOST}, that nothing has replaced; set the variable"
    elif any([mark.isspace() for mark in host]):
        problem = "the host has a space; write a comma or a space only between whole URLs"
    elif not _HOST.fullmatch(host):
        problem = "the host has a character that no host has; write redis://host:port, such as redis://10.0.0.1:6379"
    if problem:
        raise ConfigurationError(f"{where}: {problem}")


def _accepts(kind: type, name: str, value: Any) -> bool:
    try:
        kind(**{name: value})
    except Exception:
        return False
    return True


def address_of(host: object, port: object) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def kind_opens_files(kind: type) -> bool:
    return issubclass(kind, redis_connection.UnixDomainSocketConnection)
