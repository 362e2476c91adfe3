"""Read from a cluster which of its nodes has which slot.

CLUSTER SLOTS is asked, because all servers and managed services have it, and its answer has the endpoints that clients
should use. Reading blocks, so a thread of its own does it, one question at a time for all locks of a client.
"""

from __future__ import annotations

import _thread
import os
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import MasterRefused
from ...masters.cluster import Cluster, Node
from ...masters.master import Address
from ...votes.commands import pack
from ...votes.key import SLOTS
from ..engine.net import now_ns
from ..helper_threads import claim, start_thread
from ..server_traits import Limits
from .conversation import Conversation
from .sentinels import login_to

# The index under which a topology is delivered.
TOPOLOGY = -1

# Seconds for one node.
TIMEOUT = 1.0

# Seconds between two questions at least; after failures the pause doubles.
PAUSE, LONGEST_PAUSE = 0.1, 1.0

# A cluster may have a range for each slot, and each range lists its replicas.
MOST_BYTES, MOST_ELEMENTS = 16 << 20, 1 << 20

# As `masters.server` has it.
_HOST = re.compile(r"[\w.-]{1,255}|[0-9a-fA-F:.]{1,45}(?:%[\w.-]{1,64})?", re.ASCII)


class Topology(NamedTuple):
    """A topology, as one node has seen it.

    Args:
        nodes: the primaries that have slots.
        ranges: (first slot, last slot, place of the primary in `nodes`) of each range.
        members: for each of `nodes`, its replicas.
        asked_ns: the time before it was asked for.
    """

    nodes: tuple[Address, ...]
    ranges: tuple[tuple[int, int, int], ...]
    members: tuple[frozenset[Address], ...]
    asked_ns: int


class TopologyReader:
    """Reads the topology of a cluster when it may have changed. Any thread may call the methods.

    A simulation overrides `_start`, `_sleep` and `_ask`.

    Args:
        deliver: called with TOPOLOGY and what a question has brought. It must not keep the client alive.
    """

    def __init__(self, cluster: Cluster, deliver: Callable[[int, Any], None]) -> None:
        self._cluster = cluster
        self._deliver = deliver
        self._nodes: tuple[Address, ...] = ()
        self._hint: Address | None = None
        self._wanted = self._closed = False
        self._unstarted = [None]
        self._process = os.getpid()
        self._rest = _thread.allocate_lock()
        self._random = random.Random()

    def refresh(self, address: Address | None = None) -> Exception | None:
        """Have the topology read, first from the node at this address; cheap while a question is under way.

        Returns:
            None, or why no thread could start. The next call tries again: each command that finds no node makes one.
        """
        self._hint = address or self._hint
        self._wanted = True
        if self._unstarted and not self._closed:
            self._process = os.getpid()
            try:
                self._start()
            except RuntimeError as error:
                return error
        return None

    def close(self) -> None:
        self._closed = True

    def _start(self) -> None:
        start_thread("slots", self._run)

    def _run(self) -> None:
        while claim(self._unstarted):
            try:
                self._read_while_wanted()
            finally:
                self._unstarted.append(None)
            # A call of `refresh` either finds that no thread runs, or is seen here.
            if self._closed or not self._wanted:
                return

    def _read_while_wanted(self) -> None:
        pause = PAUSE
        while self._wanted and not self._closed:
            self._wanted = False
            try:
                outcome: Topology | Exception = self.read()
                pause = PAUSE
            except BaseException as error:
                # A user's credential provider may raise SystemExit.
                outcome = error if isinstance(error, Exception) else RuntimeError(f"it ended by {type(error).__name__}")
                pause = min(2 * pause, LONGEST_PAUSE)
                self._wanted = True
            self._deliver(TOPOLOGY, outcome)
            self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        self._rest.acquire(False)
        self._rest.acquire(timeout=seconds * self._random.uniform(0.5, 1.0))

    def read(self) -> Topology:
        """Ask one node after the other, and return the first answer.

        Raises:
            Exception: why the last node gave none.
        """
        hint, self._hint = self._hint, None
        known = self._random.sample(self._nodes, len(self._nodes))
        nodes = [(address, self._cluster.node) for address in ([] if hint is None else [hint]) + known]
        nodes += [(address, self._cluster.seed) for address in self._cluster.seeds]
        cause: Exception | None = None
        for address, make in dict(nodes).items():
            try:
                topology = self._ask(make(address), address)
            except Exception as error:
                # Among them is the UnicodeError of a look-up, for a host such as "..".
                cause = error
            else:
                self._nodes = topology.nodes
                return topology
        assert cause is not None
        raise cause

    def _ask(self, node: Node, address: Address) -> Topology:
        return ask(node, address)


def ask(node: Node, address: Address) -> Topology:
    """Ask a node; `address` is the one that the cluster gives it, for answers that do not repeat it."""
    asked_ns = now_ns()
    sock = node.connect(TIMEOUT)
    try:
        conversation = Conversation(sock, TIMEOUT, Limits(MOST_BYTES, MOST_ELEMENTS))
        login = login_to(node)
        replies = conversation.ask([*login, pack(b"CLUSTER", b"SLOTS")], len(login))
    finally:
        sock.close()
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return read_slots(replies[-1], address, asked_ns)


def read_slots(answer: Any, asked: Address, asked_ns: int) -> Topology:
    """Return the topology in an answer to CLUSTER SLOTS. A range whose node has no known endpoint is left out.

    Raises:
        MasterRefused: the answer is malformed, or it has no range.
    """
    places: dict[Address, int] = {}
    ranges: list[tuple[int, int, int]] = []
    replicas: list[set[Address]] = []
    for entry in answer if isinstance(answer, list) else ():
        first, last, *nodes = entry if isinstance(entry, list) and len(entry) > 2 else (None, None)
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last < SLOTS):
            raise MasterRefused("the answer to CLUSTER SLOTS is malformed")
        primary, *others = [_address(node, asked) for node in nodes]
        if primary is not None:
            place = places.setdefault(primary, len(places))
            ranges.append((first, last, place))
            replicas += [set() for _ in range(place + 1 - len(replicas))]
            replicas[place].update([other for other in others if other is not None])
    if not ranges:
        raise MasterRefused("the cluster has no slots yet")
    return Topology(tuple(places), tuple(ranges), tuple(map(frozenset, replicas)), asked_ns)


def _address(node: Any, asked: Address) -> Address | None:
    if not (isinstance(node, list) and len(node) > 1):
        raise MasterRefused("the answer to CLUSTER SLOTS is malformed")
    host, port = node[:2]
    name = host.decode(errors="replace") if isinstance(host, bytes) else ""
    if name == "?":
        return None
    if (name and not _HOST.fullmatch(name)) or not isinstance(port, int) or not 0 < port < 65536:
        raise MasterRefused("the answer to CLUSTER SLOTS is malformed")
    return (name or asked[0], port)
