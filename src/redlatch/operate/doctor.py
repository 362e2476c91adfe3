"""The checks of `redlatch doctor`."""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import redis

from redlatch.client import Client
from redlatch.errors import MasterRefused, QuorumUnavailable
from redlatch.guard.handover import is_awaited, is_left, names_of
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import LEFT, MARKER, OF_FOUNDING, PENDING, Marker, shown_list
from redlatch.guard.membership import CURE
from redlatch.locks.connecting import cure_of
from redlatch.masters.master import Master
from redlatch.operate.locks import TIMEOUT, Unreadable, connected, described
from redlatch.votes.commands import DELEX, DELIFEQ
from redlatch.votes.redaction import shown
from redlatch.wire.dial.connect import dial

PINGS = 20

# A larger difference, in seconds, may confuse readers of logs, and the order of fair locks.
OFFSET = 0.1

WATCHED = 2.0

KEPT_OUT = "after a restart the guard keeps it out for the longest ttl in use"

FINE, WARNING, UNSAFE = "fine", "warning", "unsafe"
# The errors of a marker that cannot be read.
UNREADABLE = (MasterRefused, OSError, redis.RedisError, ValueError, TypeError, RecursionError)

ORDER = (UNSAFE, WARNING, FINE)


@dataclass(frozen=True)
class Finding:
    # `master` is empty if it is about all of them.

    level: str
    master: str
    text: str
    cure: str = ""


@dataclass
class Patient:
    """One master, and what was read from it. Its clock is `offset` seconds ahead, and faster by the share `rate`."""

    master: Master
    traits: Any = None
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    pings: list[float] = field(default_factory=list)
    offset: float = 0.0
    rate: float = 0.0
    encrypted: bool = False
    error: Exception | None = None
    cure: str = ""

    def finding(self, level: str, text: str, cure: str = "") -> Finding:
        return Finding(level, self.master.name, text, cure)


def examine(masters: list[Master], drift_factor: float, prefix: bytes, trust_persistence: bool) -> list[Finding]:
    with ThreadPoolExecutor(len(masters)) as pool:
        patients = list(pool.map(read_patient, masters))
    found = list(_of_all(patients))
    for patient in patients:
        found += check_reachable(patient)
        if patient.error is None:
            for check in (check_encryption, check_version, check_memory, _cluster, _replicas):
                found += check(patient)
            found += check_clock(patient, drift_factor)
            found += check_persistence(patient, trust_persistence, KEPT_OUT)
            found += _rights(patient, prefix)
    return found + list(check_markers(patients, prefix + MARKER, trust_persistence))


def read_patient(master: Master) -> Patient:
    patient = Patient(master)
    try:
        connection = dial(master, TIMEOUT)
        connection.sock.close()
        patient.traits = connection.traits
        with connected(master) as server:
            info: Any = server.info("all")
            patient.info = info
            patient.encrypted = issubclass(server.connection_pool.connection_class, redis.SSLConnection)
            try:
                config: Any = server.config_get("*")
                patient.config = config
            except redis.ResponseError:
                patient.config = {}
            patient.pings = [_timed(server.ping) for _ in range(PINGS)]
            first = _offset(server)
            time.sleep(WATCHED)
            patient.offset = _offset(server)
            patient.rate = (patient.offset - first) / WATCHED
    # A server may answer anything.
    except Exception as error:
        patient.error, patient.cure = Unreadable(described(error)), cure_of(error)
    return patient


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _offset(server: redis.Redis) -> float:
    # The fastest of several round trips is the most exact.
    found: list[tuple[float, float]] = []
    for _ in range(5):
        began = time.time()
        told: Any = server.time()
        ended = time.time()
        found.append((ended - began, told[0] + told[1] / 1e6 - (began + ended) / 2))
    return min(found)[1]


def _of_all(patients: list[Patient]) -> Iterator[Finding]:
    size = len(patients)
    if size % 2 == 0:
        text = f"{size} masters tolerate no more failures than {size - 1}"
        yield Finding(WARNING, "", text, f"use {size - 1} or {size + 1} masters")
    same = Counter(patient.traits.run_id for patient in patients if patient.traits is not None)
    for patient in patients:
        if patient.traits is not None and same[patient.traits.run_id] > 1:
            text = "it is the same server as another master of the list"
            yield patient.finding(UNSAFE, text, "name each server once")
    hosts = Counter(patient.master.address.rpartition(":")[0] for patient in patients)
    for host, count in hosts.items():
        if count > 1 and size > 1:
            text = f"{count} of {size} masters are on {host}, and fail together with it"
            yield Finding(WARNING, "", text, "put each master on a machine of its own")


def check_reachable(patient: Patient) -> Iterator[Finding]:
    if patient.error is not None:
        cure = "start it, or mend the network or the URL; Troubleshooting in the docs has each message"
        yield patient.finding(UNSAFE, f"it cannot be used: {patient.error}", patient.cure or cure)
        return
    middle, worst = statistics.median(patient.pings) * 1e3, max(patient.pings) * 1e3
    yield patient.finding(FINE, f"answers in {middle:.2f} ms (at most {worst:.2f} ms of {PINGS})")


def check_encryption(patient: Patient) -> Iterator[Finding]:
    local = patient.master.address.startswith(("127.", "localhost", "::1", "[::1]", "/"))
    if not patient.encrypted and not local:
        text = "the connection is not encrypted: tokens and passwords can be read on the way"
        yield patient.finding(WARNING, text, "use rediss:// URLs, or a network that only you can read")


def check_version(patient: Patient) -> Iterator[Finding]:
    traits = patient.traits
    version = f"{traits.server} {'.'.join(map(str, traits.version))}"
    if traits.dialect in (DELIFEQ, DELEX):
        yield patient.finding(FINE, f"{version}: releases with one native command")
    else:
        yield patient.finding(FINE, f"{version}: releases by a script; Valkey 9 and Redis 8.4 have a cheaper command")
    if not traits.tracking:
        text = "it does not push when a lock is released (CLIENT TRACKING in RESP3), so waiters poll"
        yield patient.finding(WARNING, text, "use Redis 6 or later, or any Valkey, and grant +client|tracking")
    if not traits.scripts:
        yield patient.finding(FINE, "it refuses scripts: transactions are used, for plain and fenced locks only")


def check_memory(patient: Patient) -> Iterator[Finding]:
    if patient.traits.evicts:
        text = f"it may evict locks before their time (maxmemory-policy {patient.traits.evicts})"
        yield patient.finding(UNSAFE, text, "set maxmemory-policy noeviction")
    elif patient.info.get("maxmemory_policy", "noeviction") != "noeviction":
        text = f"maxmemory-policy is {shown(patient.info['maxmemory_policy'])}, without a maxmemory so far"
        yield patient.finding(WARNING, text, "set maxmemory-policy noeviction before there is a maxmemory")


def _cluster(patient: Patient) -> Iterator[Finding]:
    if patient.info.get("cluster_enabled"):
        text = "it is a node of a cluster, which has only some of the names, and may fail over"
        yield patient.finding(UNSAFE, text, "use servers that are no part of a cluster")


def _replicas(patient: Patient) -> Iterator[Finding]:
    replicas = patient.info.get("connected_slaves", 0)
    if replicas in (0, "0"):
        return
    if not patient.config:
        text = f"it has {shown(replicas)} replicas, and the right to read min-replicas-to-write (CONFIG GET) is missing"
        yield patient.finding(WARNING, text, "grant +config|get, or make sure that it is 1 or more")
    elif patient.config.get("min-replicas-to-write", "0") == "0":
        text = f"it has {shown(replicas)} replicas, and grants locks without them (min-replicas-to-write is 0)"
        yield patient.finding(WARNING, text, "set min-replicas-to-write to 1, if Sentinel may promote them")


def check_clock(patient: Patient, drift_factor: float) -> Iterator[Finding]:
    offset, rate = patient.offset, patient.rate
    if abs(rate) > drift_factor:
        text = f"its clock runs {abs(rate):.1%} {'faster' if rate > 0 else 'slower'} than this machine's"
        yield patient.finding(UNSAFE, text, f"mend the clock: locks allow for {drift_factor:.1%} (drift_factor)")
    elif abs(offset) > OFFSET:
        text = f"its clock is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
        yield patient.finding(WARNING, text, "synchronize the clocks (NTP)")
    else:
        yield patient.finding(FINE, f"its clock differs by {abs(offset) * 1e3:.1f} ms")


def check_persistence(patient: Patient, trusted: bool, otherwise: str) -> Iterator[Finding]:
    always = patient.info.get("aof_enabled") and patient.config.get("appendfsync") == "always"
    if trusted and not always:
        text = "a restart may lose locks, but the guard trusts its persistence"
        cure = "set appendonly yes and appendfsync always, or give up trust_persistence"
        yield patient.finding(UNSAFE if patient.config else WARNING, text, cure)
    elif not trusted:
        yield patient.finding(FINE, otherwise)


def _rights(patient: Patient, prefix: bytes) -> Iterator[Finding]:
    with Client([connected(patient.master)], prefix=prefix, guard=None, ttl=1.0) as client:
        yield from check_rights(patient, client, f"redlatch-doctor-{secrets.token_hex(8)}")


def check_rights(patient: Patient, client: Client, name: str) -> Iterator[Finding]:
    """Try locks of all kinds; the name must be one that no other client has."""
    refused: dict[str, str] = {}
    for kind, lock in _kinds(client, name, patient.traits.scripts):
        try:
            if lock.acquire(blocking=False):
                lock.extend(2.0)
                lock.release()
        except QuorumUnavailable as error:
            refused[kind] = str(next(iter(error.causes.values()), error))
    if not refused:
        yield patient.finding(FINE, "locks of all kinds can be taken, extended and released")
    for kind, why in refused.items():
        level = UNSAFE if kind == "a lock" else WARNING
        text = f"{kind} cannot be taken, extended and released: {why}"
        yield patient.finding(level, text, "grant the rights that Access rights in the docs lists")


def _kinds(client: Client, name: str, scripts: bool) -> Iterator[tuple[str, Any]]:
    yield "a lock", client.lock(name)
    yield "a fenced lock", client.lock(name, fence=True)
    if scripts:
        yield "a fair lock", client.fair_lock(name)
        yield "a read lock", client.rw_lock(name).read()
        yield "a write lock", client.rw_lock(name).write()
        yield "a semaphore", client.semaphore(name, 2)


def check_markers(patients: list[Patient], key: bytes, trusted: bool) -> Iterator[Finding]:
    markers: dict[str, Marker | None] = {}
    for patient in patients:
        if patient.error is None:
            try:
                markers[patient.master.name] = marker_of(patient.master, key)
            except UNREADABLE as error:
                yield unreadable_marker(patient, key, error)
    mine = names_of(tuple(patient.master.address for patient in patients))
    for name, marker in markers.items():
        if marker is not None:
            yield of_marker(name, marker, mine, trusted)
        elif any(markers.values()):
            text = "the guard's marker is missing, but others have theirs: it may have forgotten locks, and has no vote"
            yield Finding(WARNING, name, text, "wait: it votes by itself after the longest ttl in use")
        else:
            yield Finding(FINE, name, "no client with a guard has used it lately with this prefix")


def unreadable_marker(patient: Patient, key: bytes, error: Exception) -> Finding:
    if isinstance(error, (MasterRefused, OSError, redis.RedisError)):
        return patient.finding(UNSAFE, described(error), cure_of(error) or "Access rights in the docs has the rights")
    text = f"it has a marker that is not ours: the guard's key {key!r} holds something else"
    return patient.finding(UNSAFE, text, "find out who wrote it; then delete it")


def marker_of(master: Master, key: bytes) -> Marker | None:
    connection = dial(master, TIMEOUT, tracking=False, extension=GuardHandshake(key))
    connection.sock.close()
    return Marker.read(connection.traits.report.marker)


def of_marker(name: str, marker: Marker, mine: tuple[str, ...], trusted: bool) -> Finding:
    if is_left(marker, mine):
        text = f"it was left for {shown_list(marker.successors if marker.stage == LEFT else marker.masters)}"
        return Finding(WARNING, name, text, "give all clients those masters")
    if is_awaited(marker, mine):
        old = marker.previous if marker.stage == PENDING else marker.masters
        text = f"it waits for the handover from {shown_list(old)}"
        return Finding(WARNING, name, text, "if that has stopped, run `redlatch masters move` once more")
    if marker.masters != mine:
        # A host may have another name there, which is no danger.
        level = WARNING if len(marker.masters) == len(mine) else UNSAFE
        return Finding(level, name, f"{marker.shown_owner()} has it in the list {marker.shown_masters()}", CURE)
    if marker.trusted != trusted:
        text = f"{marker.shown_owner()} uses it with trust_persistence={marker.trusted}"
        return Finding(UNSAFE, name, text, "give all clients the same guard, and this command its options")
    if marker.stage in OF_FOUNDING:
        text = "its guard's marker is not final: a client was interrupted while it used new masters for the first time"
        return Finding(WARNING, name, text, "start a client, with all masters up")
    return Finding(FINE, name, f"its clients have this list of masters; the longest ttl in use is {marker.horizon} ms")
