"""The checks of `redlatch doctor`.

They connect as a client does, read INFO, CONFIG and the guard's marker, and take locks on a name of their own.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from redlatch.client import Client
from redlatch.errors import QuorumUnavailable
from redlatch.guard.marker import MARKER
from redlatch.locks.connecting import cure_of
from redlatch.masters.master import Master
from redlatch.operate.finding import FINE, UNSAFE, WARNING, Finding, Patient
from redlatch.operate.guarded import check_markers
from redlatch.operate.locks import TIMEOUT, Unreadable, connected, described
from redlatch.votes.commands import DELEX, DELIFEQ
from redlatch.votes.redaction import shown
from redlatch.wire.dial.connect import dial

PINGS = 20

# A larger difference, in seconds, may confuse readers of logs, and the order of fair locks.
OFFSET = 0.1

# Seconds over which the rates of clocks are compared.
WATCHED = 2.0


def examine(masters: list[Master], drift_factor: float, prefix: bytes, trust_persistence: bool) -> list[Finding]:
    with ThreadPoolExecutor(len(masters)) as pool:
        patients = list(pool.map(_read, masters))
    found = list(_of_all(patients))
    for patient in patients:
        for check in CHECKS:
            if patient.error is None or check is _reachable:
                found += check(patient)
        if patient.error is None:
            found += _clock(patient, drift_factor)
            found += _persistence(patient, trust_persistence)
            found += _rights(patient, prefix)
    return found + list(check_markers(patients, prefix + MARKER, trust_persistence))


def _read(master: Master) -> Patient:
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
                # The rights to CONFIG are optional.
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
    """Return how far the server's clock is ahead, in seconds, by the fastest of several round trips."""
    found: list[tuple[float, float]] = []
    for _ in range(5):
        began = time.time()
        told: Any = server.time()
        ended = time.time()
        found.append((ended - began, told[0] + told[1] / 1e6 - (began + ended) / 2))
    return min(found)[1]


def _of_all(patients: list[Patient]) -> Iterator[Finding]:
    """Check what only several masters together can show."""
    size = len(patients)
    if size % 2 == 0:
        text = f"{size} masters tolerate no more failures than {size - 1}"
        yield Finding(WARNING, "", text, f"use {size - 1} or {size + 1} masters")
    same = Counter(patient.traits.run_id for patient in patients if patient.traits is not None)
    for patient in patients:
        if patient.traits is not None and same[patient.traits.run_id] > 1:
            text = "it is the same server as another master of the list"
            yield Finding(UNSAFE, patient.master.name, text, "name each server once")
    hosts = Counter(patient.master.address.rpartition(":")[0] for patient in patients)
    for host, count in hosts.items():
        if count > 1 and size > 1:
            text = f"{count} of {size} masters are on {host}, and fail together with it"
            yield Finding(WARNING, "", text, "put each master on a machine of its own")


def _reachable(patient: Patient) -> Iterator[Finding]:
    if patient.error is not None:
        cure = "start it, or mend the network or the URL; Troubleshooting in the docs has each message"
        yield Finding(UNSAFE, patient.master.name, f"it cannot be used: {patient.error}", patient.cure or cure)
        return
    middle, worst = statistics.median(patient.pings) * 1e3, max(patient.pings) * 1e3
    yield Finding(FINE, patient.master.name, f"answers in {middle:.2f} ms (at most {worst:.2f} ms of {PINGS})")


def _encryption(patient: Patient) -> Iterator[Finding]:
    local = patient.master.address.startswith(("127.", "localhost", "::1", "[::1]", "/"))
    if not patient.encrypted and not local:
        text = "the connection is not encrypted: tokens and passwords can be read on the way"
        yield Finding(WARNING, patient.master.name, text, "use rediss:// URLs, or a network that only you can read")


def _version(patient: Patient) -> Iterator[Finding]:
    traits, name = patient.traits, patient.master.name
    version = f"{traits.server} {'.'.join(map(str, traits.version))}"
    if traits.dialect in (DELIFEQ, DELEX):
        yield Finding(FINE, name, f"{version}: releases with one native command")
    else:
        yield Finding(FINE, name, f"{version}: releases by a script; Valkey 9 and Redis 8.4 have a cheaper command")
    if not traits.tracking:
        text = "it does not push when a lock is released (CLIENT TRACKING in RESP3), so waiters poll"
        yield Finding(WARNING, name, text, "use Redis 6 or later, or any Valkey, and grant +client|tracking")
    if not traits.scripts:
        yield Finding(FINE, name, "it refuses scripts: transactions are used, for plain and fenced locks only")


def _memory(patient: Patient) -> Iterator[Finding]:
    if patient.traits.evicts:
        text = f"it may evict locks before their time (maxmemory-policy {patient.traits.evicts})"
        yield Finding(UNSAFE, patient.master.name, text, "set maxmemory-policy noeviction")
    elif patient.info.get("maxmemory_policy", "noeviction") != "noeviction":
        text = f"maxmemory-policy is {shown(patient.info['maxmemory_policy'])}, without a maxmemory so far"
        yield Finding(WARNING, patient.master.name, text, "set maxmemory-policy noeviction before there is a maxmemory")


def _cluster(patient: Patient) -> Iterator[Finding]:
    if patient.info.get("cluster_enabled"):
        text = "it is a node of a cluster, which has only some of the names, and may fail over"
        yield Finding(UNSAFE, patient.master.name, text, "use servers that are no part of a cluster")


def _replicas(patient: Patient) -> Iterator[Finding]:
    replicas = patient.info.get("connected_slaves", 0)
    if replicas in (0, "0"):
        return
    if not patient.config:
        text = f"it has {shown(replicas)} replicas, and the right to read min-replicas-to-write (CONFIG GET) is missing"
        yield Finding(WARNING, patient.master.name, text, "grant +config|get, or make sure that it is 1 or more")
    elif patient.config.get("min-replicas-to-write", "0") == "0":
        text = f"it has {shown(replicas)} replicas, and grants locks without them (min-replicas-to-write is 0)"
        yield Finding(
            WARNING, patient.master.name, text, "set min-replicas-to-write to 1, if Sentinel may promote them"
        )


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _reachable,
    _encryption,
    _version,
    _memory,
    _cluster,
    _replicas,
)


def _clock(patient: Patient, drift_factor: float) -> Iterator[Finding]:
    name, offset = patient.master.name, patient.offset
    if abs(patient.rate) > drift_factor:
        text = (
            f"its clock runs {abs(patient.rate):.1%} {'faster' if patient.rate > 0 else 'slower'} than this machine's"
        )
        yield Finding(UNSAFE, name, text, f"mend the clock: locks allow for {drift_factor:.1%} (drift_factor)")
    elif abs(offset) > OFFSET:
        text = f"its clock is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
        yield Finding(WARNING, name, text, "synchronize the clocks (NTP)")
    else:
        yield Finding(FINE, name, f"its clock differs by {abs(offset) * 1e3:.1f} ms")


def _persistence(patient: Patient, trusted: bool) -> Iterator[Finding]:
    always = patient.info.get("aof_enabled") and patient.config.get("appendfsync") == "always"
    if trusted and not always:
        text = "a restart may lose locks, but the guard trusts its persistence"
        cure = "set appendonly yes and appendfsync always, or give up trust_persistence"
        yield Finding(UNSAFE if patient.config else WARNING, patient.master.name, text, cure)
    elif not trusted:
        yield Finding(FINE, patient.master.name, "after a restart the guard keeps it out for the longest ttl in use")


def _rights(patient: Patient, prefix: bytes) -> Iterator[Finding]:
    """Acquire, extend and release a lock of each kind, on this master only."""
    name = f"redlatch-doctor-{secrets.token_hex(8)}"
    refused: dict[str, str] = {}
    with Client([connected(patient.master)], prefix=prefix, guard=None, ttl=1.0) as client:
        for kind, lock in _kinds(client, name, patient.traits.scripts):
            try:
                if lock.acquire(blocking=False):
                    # A longer ttl changes the keys.
                    lock.extend(2.0)
                    lock.release()
            except QuorumUnavailable as error:
                refused[kind] = str(next(iter(error.causes.values()), error))
    if not refused:
        yield Finding(FINE, patient.master.name, "locks of all kinds can be taken, extended and released")
    for kind, why in refused.items():
        level = UNSAFE if kind == "a lock" else WARNING
        text = f"{kind} cannot be taken, extended and released: {why}"
        yield Finding(level, patient.master.name, text, "grant the rights that Access rights in the docs lists")


def _kinds(client: Client, name: str, scripts: bool) -> Iterator[tuple[str, Any]]:
    yield "a lock", client.lock(name)
    yield "a fenced lock", client.lock(name, fence=True)
    if scripts:
        yield "a fair lock", client.fair_lock(name)
        yield "a read lock", client.rw_lock(name).read()
        yield "a write lock", client.rw_lock(name).write()
        yield "a semaphore", client.semaphore(name, 2)
