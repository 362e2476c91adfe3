"""The masters that the arguments of a client name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from redlatch.errors import ConfigurationError
from redlatch.masters.clients import CLUSTERS, cluster_of_client, master_of_client
from redlatch.masters.cluster import Cluster, url_of_cluster
from redlatch.masters.master import Master
from redlatch.masters.urls import master_of_url

VARIABLE = "REDLATCH_MASTERS"

NO_HANDOVER = (
    "there is no handover from or to a cluster so far. Stop all clients, wait until the longest ttl of their locks is "
    "over, and start them with the new masters"
)

# A comma without a scheme behind it separates sentinels.
_BETWEEN = re.compile(r"[,\s]+(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)

ONE = (
    *(str, bytes, redis.Redis, redis.asyncio.Redis, redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel),
    *CLUSTERS,
)


def masters_of(masters: object, by_db: bool = False) -> list[Master]:
    """Return the masters that the arguments of a client name.

    Args:
        masters: a URL, several in one string with commas or spaces between them, a redis-py client, or an iterable of
            URLs and clients.
        by_db: if True, another database of the same server counts as another master.
    """
    if isinstance(masters, str):
        masters = _BETWEEN.split(masters.strip())
    if isinstance(masters, ONE):
        masters = [masters]
    if not isinstance(masters, Iterable):
        raise ConfigurationError(f"masters: URLs or redis-py clients are needed, not {type(masters).__name__}")
    found = [_master_of(item, f"masters[{index}]") for index, item in enumerate(masters)]
    if not found:
        raise ConfigurationError("masters: at least one is needed, such as 'redis://127.0.0.1:6379'")
    _refuse_clusters(found)
    _tell_groups_apart(found)
    seen: dict[str, int] = {}
    for index, master in enumerate(found):
        master.by_db = by_db
        first = seen.setdefault(master.name if by_db else master.address, index)
        if first != index:
            raise ConfigurationError(
                f"masters[{index}]: {master.name if by_db else master.address} is masters[{first}] already; "
                "a quorum needs independent servers, each named once"
            )
    nodes = [master for master in found if master.group is None and not master.on_unix_socket]
    for master in nodes:
        master.instead = url_of_cluster(nodes) + (" (if all of these are its nodes)" if len(nodes) > 1 else "")
    return found


def masters_from_env() -> str:
    urls = os.environ.get(VARIABLE, "").strip()
    if not urls:
        raise ConfigurationError(
            f"masters: the variable {VARIABLE} is not set; give it URLs with commas between them, such as "
            "redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3"
        )
    return urls


def _refuse_clusters(masters: list[Master]) -> None:
    clusters = [master for master in masters if isinstance(master, Cluster)]
    if not clusters or len(masters) == 1:
        return
    index, url = masters.index(clusters[-1]), url_of_cluster(clusters)
    if len(clusters) == len(masters):
        raise ConfigurationError(
            f"masters[{index}]: this is another cluster, and a client can have only one so far. Give one of them; if "
            f"their hosts are nodes of one cluster, write {url}"
        )
    raise ConfigurationError(
        f"masters[{index}]: a cluster cannot be listed beside other masters so far. Give it alone; if the others are "
        f"its nodes, {url} is enough"
    )


def _tell_groups_apart(masters: list[Master]) -> None:
    """Name the sentinels of groups that have the same name but share no sentinel: they are different groups.

    Otherwise the short name is used, which does not change with the list of the sentinels.
    """
    known: dict[str, list[set[str]]] = {}
    for master in masters:
        if master.group is not None:
            known.setdefault(master.address, []).append({each.address for each in master.group.sentinels})
    for address, lists in known.items():
        if len(lists) > 1 and len(set().union(*lists)) == sum(map(len, lists)):
            for master in masters:
                if master.address == address:
                    master.name_sentinels()


def refuse_namesakes(old: list[Master], new: list[Master], where: str) -> None:
    """Refuse a handover between two groups of one name that share no sentinel: they are different groups.

    Markers cannot distinguish them: clients may list the sentinels in any order, by other addresses, or only some.
    """
    sentinels = {each.name: each.group.addresses() for each in old if each.group is not None}
    for master in new:
        if master.group is None or master.name not in sentinels:
            continue
        before, after = sentinels[master.name], master.group.addresses()
        if not set(before.split(",")) & set(after.split(",")):
            raise ConfigurationError(
                f"{where}: {master.name} is in both lists, watched by {before} in the old one and by {after} in the "
                "new one. If these are two groups, let the new sentinels know theirs by another name, too (SENTINEL "
                "MONITOR), and name that here. If it is one group, name the same sentinels in both lists"
            )


def _master_of(item: object, where: str) -> Master:
    try:
        if isinstance(item, bytes):
            item = item.decode()
        master = None
        if isinstance(item, str):
            master = master_of_url(item, where)
        elif isinstance(item, (redis.Redis, redis.asyncio.Redis)):
            master = master_of_client(item, where)
        elif isinstance(item, CLUSTERS):
            master = cluster_of_client(item, where)
        if master is not None:
            master.check_files(where)
            return master
        if isinstance(item, (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)):
            raise ConfigurationError(f"{where}: a Sentinel knows many groups; give sentinel.master_for('mymaster')")
    except ConfigurationError:
        raise
    except (ValueError, TypeError, redis.RedisError) as error:
        raise ConfigurationError(f"{where}: {_without_secrets(error, item)}") from None
    raise ConfigurationError(f"{where}: a URL or a redis-py client is needed, not {type(item).__name__}")


def _without_secrets(error: Exception, item: object) -> str:
    if isinstance(item, str) and ("@" in item or "password=" in item):
        return "the URL is malformed; special characters in a password must be percent-encoded"
    return f"the URL or client is malformed: {error}"
