"""The use of each setting of a redis-py client or of a URL.

`TABLE` lists every parameter of redis-py's clients, connections, pools and sentinels, and every option of its URLs;
`tests/masters/test_settings.py` compares it with redis-py.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis
import redis.asyncio
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError

# redis-py's connection opens the socket with a setting; redlatch reads it; it cannot matter to a lock; or a value other
# than redis-py's default is an error.
CONNECTION, OURS, UNUSED, REFUSED = "connection", "ours", "unused", "refused"


class Setting(NamedTuple):
    # `reason` says why the setting is unused, or what to do instead of a refused one.

    fate: str
    reason: str = ""


_OF_TCP = ("host", "port", "socket_keepalive", "socket_keepalive_options", "socket_type")
_OF_TLS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
    "ssl_password",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
)
_OF_ANY = ("db", "username", "password", "credential_provider")

# These name a client's servers; redis-py's clients have turned them into a pool, or into the nodes of a cluster.
_OF_A_POOL = (
    "address_remap",
    "connection_class",
    "connection_pool",
    "connection_pool_class",
    "force_master_ip",
    "is_master",
    "min_other_sentinels",
    "sentinel_kwargs",
    "sentinel_manager",
    "sentinels",
    "service_name",
    "startup_nodes",
    "unix_socket_path",
)

_UNUSED = {
    "attempt_timeout and the ttl limit how long a master may take": ("socket_connect_timeout", "socket_timeout"),
    "redlatch reads replies itself": ("legacy_responses", "parser_class", "socket_read_size"),
    "redlatch dials again and retries by itself (Client, retry)": (
        "cluster_error_retry_attempts",
        "connection_error_retry_attempts",
        "retry",
        "retry_on_error",
        "retry_on_timeout",
    ),
    "redlatch notices a silent master by itself": ("check_connection", "health_check_interval"),
    "redlatch has one connection to each master, and no pool": (
        "auto_close_connection_pool",
        "max_connections",
        "queue_class",
        "single_connection_client",
        "timeout",
    ),
    "names of locks are UTF-8, and no replies are returned": (
        "charset",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "errors",
        "response_callbacks",
    ),
    "redlatch sends no CLIENT SETINFO; it is for statistics only": ("driver_info", "lib_name", "lib_version"),
    "redlatch never reads a cached reply": ("cache", "cache_config", "cache_factory"),
    "redlatch dials again after maintenance has closed a connection": (
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "maintenance_notification_hash",
        "maintenance_state",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "oss_cluster_maint_notifications_handler",
    ),
    "events are about connections of a pool; a new connection asks the credential provider again": (
        "event_dispatcher",
    ),
    "redlatch does not send HIMPORT": ("himport_registry",),
    "redlatch asks only the primary that has the name": ("load_balancing_strategy", "read_from_replicas"),
    "redlatch routes commands itself, and reads the topology again after a redirect": (
        "dynamic_startup_nodes",
        "nodes_flag",
        "policy_resolver",
        "reinitialize_steps",
        "require_full_coverage",
    ),
}

_REFUSED = {
    "redis_connect_func": "redlatch does not call it; use credential_provider to log in, or a connection_class with "
    "its own _connect() to open the socket",
    "command_packer": "redlatch packs commands itself; leave it out",
    "encoder_class": "redlatch encodes commands itself; leave it out",
    "ssl": "for TLS write rediss:// or valkeys://",
}

TABLE: dict[str, Setting] = {
    **dict.fromkeys((*_OF_ANY, *_OF_TCP, *_OF_TLS, "path"), Setting(CONNECTION)),
    **dict.fromkeys((*_OF_A_POOL, "client_name", "protocol"), Setting(OURS)),
    **{name: Setting(UNUSED, reason) for reason, names in _UNUSED.items() for name in names},
    **{name: Setting(REFUSED, reason) for name, reason in _REFUSED.items()},
}

# As text in a URL these objects would fail only when a connection is opened.
_NO_TEXT = ("credential_provider", "socket_keepalive_options", "socket_type", "ssl_ocsp_context")

_WANTED = {
    "db": "a database number",
    "port": "a number from 1 to 65535",
    "protocol": "2 or 3",
    "ssl_ca_data": "the text of certificates in PEM",
    "ssl_ca_path": "a folder that can be read",
    "ssl_cert_reqs": "required, optional or none, or CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE",
    "ssl_check_hostname": "true or false",
    "ssl_ciphers": "a list of ciphers that OpenSSL knows (openssl ciphers), such as ECDHE+AESGCM",
    "ssl_min_version": "a number of ssl.TLSVersion, such as 771 for TLS 1.2",
}

# Celery's documentation uses the names of ssl's constants in URLs.
_CONSTANT = re.compile(r"(?:ssl\.)?CERT_(REQUIRED|OPTIONAL|NONE)", re.IGNORECASE)

_CLIENT_NAME = re.compile(r"[!-~]+")


def defaults_of(name: str) -> list[Any]:
    clients = redis.Redis, redis.asyncio.Redis, redis.RedisCluster, redis.asyncio.RedisCluster
    found = [_parameters(client).get(name) for client in clients]
    return [None, *[parameter.default for parameter in found if parameter is not None]]


@functools.cache
def _parameters(client: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(client).parameters


def is_default(name: str, value: Any) -> bool:
    """Return True if a client may have this value without having been given it."""
    return any([value is default or value == default for default in defaults_of(name)])


def telling(options: Mapping[str, Any]) -> dict[str, Any]:
    used = (CONNECTION, OURS)
    return {
        name: value
        for name, value in options.items()
        if name in TABLE and name not in _OF_A_POOL and TABLE[name].fate in used and not is_default(name, value)
    }


def for_connection(kind: type, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    # A user's class also gets settings that redis-py does not know.
    kept = {}
    for name, value in options.items():
        setting = TABLE.get(name)
        if setting is None:
            if not _is_for_a_class_of_the_user(kind, name):
                _refuse_unknown(name, value, where)
                continue
        elif setting.fate == REFUSED and not is_default(name, value):
            raise ConfigurationError(f"{where}: {name} cannot be used: {setting.reason}")
        elif setting.fate != CONNECTION:
            continue
        else:
            _check_transport(kind, name, where)
        kept[name] = _certificate_check(value) if name == "ssl_cert_reqs" else value
    return kept


def from_url(options: Mapping[str, Any], where: str) -> None:
    for name in _NO_TEXT:
        if name in options:
            raise ConfigurationError(f"{where}: {name} cannot be written in a URL; give a redis-py client with it")
    for name in _OF_A_POOL:
        if name in options:
            raise ConfigurationError(
                f"{where}: {name} is no option of a URL; leave it out. The scheme says how the server is reached: "
                "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
            )


def wrong_value(name: str, where: str) -> ConfigurationError:
    wanted = f"; {_WANTED[name]} is needed" if name in _WANTED else ""
    return ConfigurationError(f"{where}: the option {name} has a value that cannot be used{wanted}")


def client_name_of(options: Mapping[str, Any], where: str) -> str:
    name = options.get("client_name") or ""
    if name and not (isinstance(name, str) and _CLIENT_NAME.fullmatch(name)):
        raise ConfigurationError(
            f"{where}: client_name must be printable ASCII without spaces; no server accepts other"
        )
    return str(name)


def is_resp2(options: Mapping[str, Any], where: str) -> bool:
    # redis-py before version 8 gives protocol=2 to all clients.
    protocol = options.get("protocol")
    if protocol is not None and str(protocol) not in ("2", "3"):
        raise wrong_value("protocol", where)
    return str(protocol) == "2"


def _is_for_a_class_of_the_user(kind: type, name: str) -> bool:
    return not is_of_redis_py(kind) and name not in known_to_redis_py(kind)


def is_of_redis_py(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "redis"


def known_to_redis_py(kind: type) -> set[str]:
    own = [base for base in kind.__mro__ if is_of_redis_py(base)]
    return {name for base in own for name in inspect.signature(base).parameters}


def _refuse_unknown(name: str, value: Any, where: str) -> None:
    # A later redis-py may have a setting that is not in the table.
    if defaults_of(name) == [None]:
        raise ConfigurationError(f"{where}: no connection has the option {name!r}")
    if not is_default(name, value):
        raise ConfigurationError(f"{where}: this version of redlatch does not know the option {name!r} of redis-py")


def _check_transport(kind: type, name: str, where: str) -> None:
    # To drop an option of TLS would send the password in the clear.
    if name in _OF_TLS and not issubclass(kind, redis_connection.SSLConnection):
        raise ConfigurationError(f"{where}: {name} is for TLS; write rediss:// or valkeys://, or leave it out")
    on_unix = issubclass(kind, redis_connection.UnixDomainSocketConnection)
    if (name == "path") != on_unix and name in ("path", *_OF_TCP):
        raise ConfigurationError(f"{where}: {name} is only for {'TCP' if on_unix else 'unix://'}; leave it out")
    if name not in known_to_redis_py(kind):
        raise ConfigurationError(f"{where}: redis-py {redis.__version__} does not have the option {name} yet")


def _certificate_check(value: Any) -> Any:
    named = _CONSTANT.fullmatch(value) if isinstance(value, str) else None
    return value if named is None else named[1].lower()
