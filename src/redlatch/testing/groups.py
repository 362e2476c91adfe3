"""Groups of a master and its replicas that Sentinel watches, on this machine, for tests of fail-over."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import redis

from redlatch.errors import ConfigurationError
from redlatch.testing.embedded import DEFAULTS, Directives, Masters, Server, find_server, masters

__all__ = ["Sentinels", "sentinels"]

LOOK_SECONDS = 0.01

ANSWER_TIMEOUT = 1.0

# Seconds for a fail-over to begin, or to end. Sentinel repeats a failed one.
FAILOVER_TIMEOUT = 60.0


def sentinels(
    groups: int = 1,
    *,
    replicas: int = 1,
    sentinels: int = 3,
    server: Server | None = None,
    config: Directives | None = None,
    sentinel_config: Directives | None = None,
    down_after: float = 0.5,
    failover_timeout: float = 2.0,
    startup_timeout: float = 30.0,
) -> Sentinels:
    """Return a context manager that starts groups of servers and their sentinels, and yields one URL for each group.

    Args:
        groups: the number of groups. Default 1.
        replicas: the number of replicas in each group. Default 1.
        sentinels: the number of sentinels, each of which watches all groups. Default 3.
        server: the server program. Default None: the result of `find_server`.
        config, sentinel_config: further directives of the servers and of the sentinels, as for `masters`.
        down_after: seconds without an answer until a sentinel considers a server down. Default 0.5.
        failover_timeout: Sentinel's failover-timeout, in seconds. Default 2.
        startup_timeout: seconds within which all replicas and sentinels must be ready. Default 30.

    Raises:
        ConfigurationError: an argument is invalid, or no server program was found.
    """
    if groups < 1 or replicas < 1 or sentinels < 1:
        raise ConfigurationError("groups, replicas and sentinels: at least one of each is needed")
    program = find_server() if server is None else server
    given = of_servers(config)
    fleet = masters(groups * (1 + replicas), server=program, config=given, startup_timeout=startup_timeout)
    times = {"down-after-milliseconds": int(down_after * 1000), "failover-timeout": int(failover_timeout * 1000)}
    return Sentinels(
        fleet, groups, sentinels, program, _lists(sentinel_config), given["masterauth"][-1], times, startup_timeout
    )


class Sentinels:
    """Groups of servers and their sentinels, made by `sentinels`. They run from ``__enter__`` to ``__exit__``.

    Attributes:
        servers: the masters and replicas, group by group. The first server of each group starts as its master.
        sentinels: the fleet of the sentinels.
    """

    def __init__(
        self,
        servers: Masters,
        groups: int,
        sentinels: int,
        program: Server,
        config: dict[str, list[str]],
        password: str,
        times: Mapping[str, int],
        startup_timeout: float,
    ) -> None:
        self.servers = servers
        self.sentinels: Masters
        self._groups = groups
        self._sentinels = sentinels
        self._program = program
        self._config = config
        self._password = password
        self._times = times
        self._startup_timeout = startup_timeout
        self._running = contextlib.ExitStack()

    @property
    def urls(self) -> list[str]:
        """Return one URL per group."""
        hosts = ",".join([url.rpartition("@")[2].rpartition("/")[2] for url in self.sentinels.urls])
        user = f":{quote(self._password, safe='')}@" if self._password else ""
        own = self._config.get("requirepass", [""])[-1]
        query = f"?sentinel_password={quote(own, safe='')}" if own else ""
        scheme = self.sentinels.urls[0].partition("://")[0]
        return [f"{scheme}+sentinel://{user}{hosts}/{name_of(group)}{query}" for group in range(self._groups)]

    def members(self, group: int) -> list[int]:
        """Return the indexes of a group's servers in `servers`."""
        size = len(self.servers.pids) // self._groups
        return list(range(group * size, group * size + size))

    def master(self, group: int) -> int:
        """Return the index in `servers` of the master that most sentinels name."""
        named: Counter[str] = Counter()
        for url in self.sentinels.urls:
            with contextlib.suppress(redis.RedisError), connected(url) as sentinel:
                address = sentinel.sentinel_get_master_addr_by_name(name_of(group))
                if address is not None:
                    named[f"{address[0]}:{address[1]}"] += 1
        addresses = [url.rpartition("@")[2].rpartition("/")[2] for url in self.servers.urls]
        if not named:
            raise RuntimeError(f"no sentinel names a master of {name_of(group)}")
        return addresses.index(named.most_common(1)[0][0])

    def kill(self, group: int) -> int:
        """Kill the master of a group (SIGKILL), and return its index in `servers`."""
        index = self.master(group)
        self.servers.kill(index)
        return index

    def pause(self, group: int) -> int:
        """Pause the master of a group (SIGSTOP), and return its index in `servers`."""
        index = self.master(group)
        self.servers.pause(index)
        return index

    def resume(self, group: int) -> None:
        """Resume every paused server of a group (SIGCONT)."""
        for index in self.members(group):
            if self.servers.pids[index] is not None:
                self.servers.resume(index)

    def start(self, group: int) -> None:
        """Start every dead server of a group again. Sentinel makes a former master a replica some seconds later."""
        for index in self.members(group):
            if self.servers.pids[index] is None:
                self.servers.start(index)

    def failover(self, group: int) -> int:
        """Begin a fail-over of a group (SENTINEL FAILOVER), and return the index of the former master."""
        index = self.master(group)
        wait_until(lambda: self._begins_failover(group), FAILOVER_TIMEOUT, "no sentinel begins the fail-over")
        return index

    def await_other(self, group: int, index: int) -> int:
        """Wait until a group has another master than `index`, and return that server's index."""
        wait_until(lambda: self.master(group) != index, FAILOVER_TIMEOUT, "the group does not fail over")
        return self.master(group)

    def __enter__(self) -> list[str]:
        """Start all servers, then the sentinels, wait until they know each other, and return `urls`.

        Raises:
            RuntimeError, ConfigurationError, TimeoutError: as for entering `Masters`.
        """
        try:
            urls = self._running.enter_context(self.servers)
            for group in range(self._groups):
                first, *replicas = self.members(group)
                for index in replicas:
                    with connected(urls[index]) as server:
                        server.replicaof("127.0.0.1", port_of(urls[first]))
            for index, url in enumerate(urls):
                if index not in [self.members(group)[0] for group in range(self._groups)]:
                    self._await(partial(_has_synchronized, url), "a replica")
            self.sentinels = Masters(
                [str(self._program)] * self._sentinels,
                self._directives(urls),
                False,
                self._startup_timeout,
                ("--sentinel",),
            )
            for url in self._running.enter_context(self.sentinels):
                for group in range(self._groups):
                    self._await(partial(self._knows_all, url, group), "a sentinel")
        except BaseException:
            self._running.close()
            raise
        return self.urls

    def __exit__(self, *_: object) -> None:
        """Kill all servers and sentinels; no process and no folder is left."""
        self._running.close()

    def _directives(self, urls: list[str]) -> dict[str, list[str]]:
        lines = []
        for group in range(self._groups):
            name, port = name_of(group), port_of(urls[self.members(group)[0]])
            lines.append(f"monitor {name} 127.0.0.1 {port} {self._sentinels // 2 + 1}")
            lines += [f"{setting} {name} {milliseconds}" for setting, milliseconds in self._times.items()]
            if self._password:
                lines.append(f"auth-pass {name} {self._password}")
        usual = {name: [value] for name, value in DEFAULTS.items()} | {"port": ["{port}"]}
        return usual | self._config | {"sentinel": lines}

    def _knows_all(self, url: str, group: int) -> bool:
        with connected(url) as sentinel:
            state = sentinel.sentinel_master(name_of(group))
        replicas = len(self.members(group)) - 1
        return bool(state["num-slaves"] == replicas and state["num-other-sentinels"] == self._sentinels - 1)

    def _begins_failover(self, group: int) -> bool:
        for url in self.sentinels.urls:
            # A sentinel refuses until the previous fail-over has ended.
            with contextlib.suppress(redis.RedisError), connected(url) as sentinel:
                return bool(sentinel.execute_command("SENTINEL FAILOVER", name_of(group)))
        return False

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, self._startup_timeout, f"{what} is not ready")


def name_of(group: int) -> str:
    return f"group{group}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    options: dict[str, Any] = {"socket_timeout": ANSWER_TIMEOUT, "decode_responses": True, "retry": None}
    if url.startswith("rediss"):
        options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    with redis.Redis.from_url(url, **options) as client:
        yield client


def wait_until(condition: Callable[[], bool], seconds: float, problem: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} after {seconds:g} s")
        time.sleep(LOOK_SECONDS)


def _has_synchronized(url: str) -> bool:
    with connected(url) as server:
        return bool(server.info("replication").get("master_link_status") == "up")


def of_servers(config: Directives | None) -> dict[str, list[str]]:
    # By default a master waits 5 s, so that one transfer serves several replicas.
    given = {"repl-diskless-sync-delay": ["0"]} | _lists(config)
    return {"masterauth": given.get("requirepass", [""])} | given


def _lists(config: Directives | None) -> dict[str, list[str]]:
    given = (config or {}).items()
    return {name.lower(): [value] if isinstance(value, str) else list(value) for name, value in given}
