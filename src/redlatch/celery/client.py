from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import redis.connection
import redis.exceptions

from .. import impl
from ..client import Client, Lock
from ..errors import ConfigurationError, LockLost, NotOwned, QuorumUnavailable
from ..guard.settings import Guard
from ..masters.cluster import Cluster
from ..masters.master import Master
from ..options import Options
from ..votes.commands import pack
from ..votes.key import key_as_it_is, slot_of
from ..votes.kinds import PLAIN
from ..wire.dial.connect import dial
from ..wire.dial.topology import TopologyReader
from .kinds import ending, labelled

# It separates the guard's settings from those of other clients of the same servers.
PREFIX = "redlatch:celery:"

# The lock of a published task lives until a worker has taken it over.
MAX_TTL = 3600.0

READ_TIMEOUT = 2.0

BROKERS = ("redis://", "rediss://", "valkey://", "valkeys://", "unix://")


class TaskClient(Client):
    def _open(self, options: Options) -> None:
        self._build = impl.for_clients()
        super()._open(options)

    def longest(self, seconds: float) -> float:
        """Return a ttl in seconds, cut to the longest one that the guard allows."""
        return min(seconds, self._quorum.max_ttl_ms / 1000)

    def labelled(self, name: str, ttl: float | None, label: str, former: str = "", *, auto_renew: bool = False) -> Lock:
        """Make a lock whose tokens end with a label of the holder. The token `former` counts as free."""
        if self._shared.no_scripts:
            raise ConfigurationError("redlatch_options: a Singleton needs scripts (EVAL); leave out scripts='watch'")
        # A token has at most 512 bytes, 32 of them random.
        key_as_it_is(b"%32s:%b" % (b"", label.encode()), "label")
        kind = labelled(self._build)(label.encode(), former.encode())
        return self._new(Lock, name, ttl, {"auto_renew": auto_renew}, PLAIN, lambda key: kind)

    def hand_over(self, lock: Lock) -> str:
        """Give up a held lock without releasing it, and return its token."""
        hold = lock._hold
        token = lock.token
        if token is None:
            raise NotOwned(f"cannot hand over {lock.name!r}: this lock object does not hold it", name=lock.name)
        # Waiters of this client ask the masters from now on. `free` comes last: after an error the lock can be
        # released.
        hold.token_exposed = True
        self._quorum.leave_queue(self._driver, hold)
        hold.free()
        return token.decode()

    def free(self, name: str, token: str) -> None:
        """Release another process's lock with this token, if there is one."""
        self._release(name, self._plain, token.encode())

    def end(self, name: str, label: str) -> None:
        """Release the lock whose token has this label, if there is one."""
        self._release(name, ending(self._build)(label.encode()), b"unknown")

    def _release(self, name: str, kind: Any, token: bytes) -> None:
        hold = self._hold_of(name, self._key_of(self._prefix, name), kind)
        hold.borrow(token)
        try:
            Lock(self._shared, hold, self._ttl_ms, None).release()
        except (LockLost, NotOwned):
            return

    def holder(self, name: str) -> str | None:
        """Return the label of a lock's holder; None if no quorum has the same token."""
        key = self._key_of(self._prefix, name)
        with ThreadPoolExecutor(len(self._masters)) as pool:
            answers = list(pool.map(lambda master: _value_of(master, key), self._masters))
        failed = {
            master.address: answer
            for master, answer in zip(self._masters, answers, strict=True)
            if isinstance(answer, Exception)
        }
        if len(self._masters) - len(failed) < self._quorum.majority:
            raise QuorumUnavailable(f"no quorum could say who holds {name!r}", name=name, causes=failed)
        votes = Counter(answer for answer in answers if isinstance(answer, bytes))
        for token, count in votes.most_common(1):
            if count >= self._quorum.majority:
                return token.partition(b":")[2].decode(errors="replace")
        return None


class _Reading:
    info_sections: tuple[bytes, ...] = ()

    def __init__(self, key: bytes) -> None:
        self._key = key

    def commands(self) -> list[bytes]:
        return [pack(b"GET", self._key)]

    def read(self, replies: list[Any]) -> Any:
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]

    def report(self, found: Any, info: Mapping[str, str], sent_ns: int, came_ns: int) -> Any:
        return found

    def repeated(self) -> _Reading:
        return self


def _value_of(master: Master, key: bytes) -> Any:
    try:
        server = _node_for(master, key) if isinstance(master, Cluster) else master
        connection = dial(server, READ_TIMEOUT, False, _Reading(key))
    except (OSError, redis.exceptions.RedisError) as error:
        return error
    connection.sock.close()
    return connection.traits.report


def _node_for(cluster: Cluster, key: bytes) -> Master:
    topology, slot = TopologyReader(cluster, lambda index, outcome: None).read(), slot_of(key)
    for first, last, place in topology.ranges:
        if first <= slot <= last:
            return cluster.node(topology.nodes[place])
    raise ConnectionError(f"no node of {cluster.address} has the slot {slot}")


# --- one client for each app and process ---------------------------------------------------------------

_clients: weakref.WeakKeyDictionary[Any, dict[int, TaskClient]] = weakref.WeakKeyDictionary()


def client_of(app: Any) -> TaskClient:
    # No lock guards this: a pool process is forked, and may copy a lock that another thread holds. A client that loses
    # a race has no connections yet.
    of_app = _clients.setdefault(app, {})
    pid = os.getpid()
    return of_app.get(pid) or of_app.setdefault(pid, new_client(app))


def new_client(app: Any) -> TaskClient:
    options = {"prefix": PREFIX, "guard": Guard(max_ttl=MAX_TTL)}
    given = app.conf.get("redlatch_options")
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"redlatch_options: a dict of options of redlatch.Client is needed, not {type(given).__name__}")
    return TaskClient(_masters(app.conf), **{**options, **(given or {})})


def _masters(conf: Any) -> Any:
    # By default the broker, if it is one Redis or Valkey server.
    masters = conf.get("redlatch_masters")
    if masters:
        return masters
    broker = conf.get("broker_url")
    brokers = [broker] if isinstance(broker, str) else list(broker) if isinstance(broker, Iterable) else []
    if len(brokers) == 1 and brokers[0].startswith(BROKERS) and ";" not in brokers[0]:
        tls = conf.get("broker_use_ssl")
        return [_with_tls(brokers[0], tls)] if tls else brokers
    raise ConfigurationError(
        "redlatch_masters: set it to the URLs of Redis or Valkey servers; the broker of this app is not one such server"
    )


def _with_tls(broker: str, tls: Any) -> redis.Redis:
    scheme, _, rest = broker.partition("://")
    if scheme == "unix":
        raise ConfigurationError("redlatch_masters: set it; broker_use_ssl does not fit the unix socket of broker_url")
    try:
        options = redis.connection.parse_url(f"rediss://{rest}") | (dict(tls) if isinstance(tls, Mapping) else {})
    except ValueError:
        raise ConfigurationError("redlatch_masters: broker_url is malformed; its host, port or an option") from None
    return redis.Redis(connection_pool=redis.ConnectionPool(**options))
