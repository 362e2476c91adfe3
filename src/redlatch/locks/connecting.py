"""The errors of `connect`: settings that no waiting repairs, and masters that are missing."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import redis.exceptions as redis_errors

from ..errors import ConfigurationError, QuorumUnavailable
from ..masters.server import WHOLE_CLUSTER
from .lock import Driver

# The values of `require`.
ALL, QUORUM = "all", "quorum"

_NO_CLUSTER = "the server is no cluster: write redis:// instead of redis+cluster://"

# The class, the beginning of the text, and the cure.
_LASTING: tuple[tuple[type[BaseException], str, str], ...] = (
    (redis_errors.AuthenticationError, "", "give the right user and password in the URL"),
    (redis_errors.NoPermissionError, "", "grant the right; docs/operations.md, Access rights, lists all"),
    (redis_errors.ResponseError, "ERR DB index is out of range", "choose a database that the server has"),
    (redis_errors.ResponseError, "ERR SELECT is not allowed in cluster mode", WHOLE_CLUSTER),
    (redis_errors.ResponseError, "ERR This instance has cluster support disabled", _NO_CLUSTER),
    (redis_errors.ResponseError, "CLUSTERDOWN", WHOLE_CLUSTER),
    (redis_errors.ResponseError, "MOVED", WHOLE_CLUSTER),
    (ssl.SSLCertVerificationError, "", "give ssl_ca_certs, or a host name that is in the certificate"),
    (ssl.SSLError, "[SSL: WRONG_VERSION_NUMBER]", "the port has no TLS: use redis:// instead of rediss://"),
    (ssl.SSLError, "[SSL] record layer failure", "the port has no TLS: use redis:// instead of rediss://"),
)


def cure_of(cause: BaseException, of_cluster: bool = False) -> str:
    # For a refused list of masters there is none: the connections raise that, or a handover ends it.
    text = str(cause)
    cures = (cure for kind, begin, cure in _LASTING if isinstance(cause, kind) and text.startswith(begin))
    # In a cluster, these errors pass.
    return next((cure for cure in cures if not (of_cluster and cure == WHOLE_CLUSTER)), "")


def check_connected(driver: Driver, require: str | None) -> None:
    """Raise an exception if too few masters vote after the client has connected.

    If `require` is None, only errors that waiting does not end are raised, and only if they make a quorum impossible.
    """
    if require not in (None, ALL, QUORUM):
        raise ConfigurationError(f"require: 'all', 'quorum' or None is needed, got {require!r}")
    causes = driver.status.causes()
    size, quorum = driver.status.sizes()
    spare = size - quorum
    lasting = {name: cause for name, cause in causes.items() if cure_of(cause, driver.status.of_cluster)}
    if len(lasting) > spare or (lasting and require == ALL):
        raise ConfigurationError(f"masters: {_described(lasting)}", causes=lasting)
    if (require == ALL and causes) or (require == QUORUM and len(causes) > spare):
        voting = size - len(causes)
        needed = size if require == ALL else quorum
        raise QuorumUnavailable(f"connect: {voting} of {size} masters vote, {needed} are required", causes=causes)


def _described(lasting: Mapping[str, BaseException]) -> str:
    return "; ".join([f"{name}: {cure_of(cause)}" for name, cause in lasting.items()])
