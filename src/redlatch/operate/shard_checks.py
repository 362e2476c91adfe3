"""The checks of `redlatch doctor` for a cluster: of each primary, and of all together."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import redis

from redlatch.client import Client
from redlatch.guard.marker import Marker
from redlatch.guard.shards import marker_keys
from redlatch.locks.connecting import cure_of
from redlatch.masters.cluster import Cluster
from redlatch.operate.doctor import (
    FINE,
    UNREADABLE,
    UNSAFE,
    WARNING,
    Finding,
    Patient,
    check_clock,
    check_encryption,
    check_memory,
    check_persistence,
    check_reachable,
    check_rights,
    check_version,
    marker_of,
    read_patient,
    unreadable_marker,
)
from redlatch.operate.locks import Unreadable, connected, described
from redlatch.operate.shards import Shards
from redlatch.votes.key import key_of, slot_of
from redlatch.votes.redaction import shown

# With fewer, the failure of one primary leaves no majority that could promote a replica.
ENOUGH = 3

IN_DOUBT = "after a restart its locks are in doubt until clients have asked for them"

# How many names are tried to find one in a slot of a node.
TRIED = 200_000

# How many keys a marker may have, because the slots of the node have changed since it was written.
EARLIER_KEYS = 8

MOST_SLOTS = 10

# A slot on its way, in the node's own line of CLUSTER NODES.
_MOVE = re.compile(r"\[(\d+)-([<>])-(\w+)\]")


def examine_cluster(
    cluster: Cluster, masters: Any, drift_factor: float, prefix: bytes, trust_persistence: bool
) -> list[Finding]:
    """Examine the primaries of a cluster, which `masters` names for a client."""
    try:
        shards = Shards(cluster)
    except Unreadable as error:
        cure = cure_of(error.__cause__ or error, True) or "start it, or mend the network or the URL"
        return [Finding(UNSAFE, "", f"no node says which slots it has: {error}", cure)]
    with ThreadPoolExecutor(len(shards.nodes)) as pool:
        patients = list(pool.map(read_patient, shards.nodes))
    found = [*_of_all(shards), *_coverage(patients), *_moves(patients)]
    with Client(masters, prefix=prefix, guard=None, ttl=1.0) as client:
        for patient, members, slots in zip(patients, shards.topology.members, shards.slots, strict=True):
            found += check_reachable(patient)
            if patient.error is None:
                for check in (check_encryption, check_version, check_memory):
                    found += check(patient)
                found += _replicas(patient, len(members))
                found += check_clock(patient, drift_factor)
                found += check_persistence(patient, trust_persistence, IN_DOUBT)
                found += _rights(patient, client, prefix, slots)
                found.append(_marker(patient, prefix, slots, trust_persistence))
    return found


def _of_all(shards: Shards) -> Iterator[Finding]:
    size = len(shards.nodes)
    replicas = sum(map(len, shards.topology.members))
    yield Finding(FINE, "", f"primaries of the cluster: {size}; replicas: {replicas}")
    if missing := shards.unowned():
        ranges = ", ".join([f"{first}-{last}" if first < last else str(last) for first, last in missing[:MOST_SLOTS]])
        text = f"{sum([last - first + 1 for first, last in missing])} slots belong to no node: {ranges}"
        yield Finding(UNSAFE, "", text, "give them to a node (redis-cli --cluster fix)")
    if size < ENOUGH:
        text = f"no replica is promoted by itself: that needs {ENOUGH} primaries, and there are only {size}"
        yield Finding(WARNING, "", text, f"use {ENOUGH} primaries or more")
    hosts = Counter(node.announced[0] for node in shards.nodes)
    for host, number in hosts.items():
        if size > 1 and 2 * number >= size:
            text = f"{number} of {size} primaries are on {host}: if it fails, no replica is promoted"
            yield Finding(WARNING, "", text, "put most primaries on machines of their own")


def _coverage(patients: list[Patient]) -> Iterator[Finding]:
    values = {str(patient.config.get("cluster-require-full-coverage")) for patient in patients if patient.config}
    if len(values) > 1:
        text = "cluster-require-full-coverage is not the same on all nodes"
        yield Finding(WARNING, "", text, "set it to the same value on all nodes")
    elif values == {"no"}:
        text = "if a shard has no living node, only its names are refused (cluster-require-full-coverage no)"
        yield Finding(FINE, "", text)
    elif values == {"yes"}:
        text = "if a shard has no living node, all names are refused (cluster-require-full-coverage yes)"
        yield Finding(FINE, "", text)


def _moves(patients: list[Patient]) -> Iterator[Finding]:
    leaving: set[int] = set()
    arriving: list[tuple[Patient, int, str]] = []
    for patient in patients:
        if patient.error is not None:
            continue
        try:
            moves = list(_moves_of(patient))
        except redis.RedisError as error:
            yield patient.finding(FINE, f"it was not asked whether slots are being moved: {described(error)}")
            continue
        outwards: dict[str, list[int]] = {}
        for slot, out, other in moves:
            if out:
                outwards.setdefault(other, []).append(slot)
            else:
                arriving.append((patient, slot, other))
        for other, slots in outwards.items():
            leaving.update(slots)
            yield _open_move(patient, f"to {other}", slots)
    for patient, slot, other in arriving:
        if slot not in leaving:
            yield _open_move(patient, f"from {other}", [slot])


def _open_move(patient: Patient, where: str, slots: list[int]) -> Finding:
    listed = ", ".join(map(str, slots[:MOST_SLOTS])) + ("..." if len(slots) > MOST_SLOTS else "")
    text = f"slots are being moved {where}: {listed}. Locks on these names may take longer"
    return patient.finding(WARNING, text, "if that has stopped, end it (redis-cli --cluster fix)")


def _moves_of(patient: Patient) -> Iterator[tuple[int, bool, str]]:
    """Yield the slots that are on their way: the slot, whether it leaves the node, and the other node."""
    with connected(patient.master) as server:
        # What redis-py makes of the answer has changed between its versions.
        server.set_response_callback("CLUSTER NODES", lambda answer, **_: answer)
        answer: Any = server.execute_command("CLUSTER NODES")
    lines = answer.decode(errors="replace").splitlines() if isinstance(answer, bytes) else []
    words = [line.split(" ") for line in lines if line.count(" ") > 2]
    addresses = {name: shown(address.partition("@")[0]) for name, address, *_ in words}
    for _, _, flags, *rest in words:
        if "myself" in flags.split(","):
            for slot, way, other in _MOVE.findall(" ".join(rest)):
                yield int(slot), way == ">", addresses.get(other, other)


def _replicas(patient: Patient, listed: int) -> Iterator[Finding]:
    states = [state for name, state in patient.info.items() if re.fullmatch(r"slave\d+", name)]
    online = sum([isinstance(state, dict) and state.get("state") == "online" for state in states])
    expected = max(listed, len(states))
    if not expected:
        text = "it has no replica: while it is down, its names cannot be locked"
        yield patient.finding(WARNING, text, "give each shard a replica, or better two, on other machines")
        return
    if online < expected:
        text = f"only {online} of its {expected} replicas are online: the others lack its last locks"
        yield patient.finding(WARNING, text, "start them, or mend the network between them")
    if not patient.config:
        text = "the right to read min-replicas-to-write (CONFIG GET) is missing"
        yield patient.finding(WARNING, text, "grant +config|get, or make sure that it is 1")
    else:
        yield from _least_replicas(patient, expected, patient.config)


def _least_replicas(patient: Patient, expected: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    least, lag, timeout = [
        _number(config.get(name)) for name in ("min-replicas-to-write", "min-replicas-max-lag", "cluster-node-timeout")
    ]
    cure = "set min-replicas-to-write 1, and min-replicas-max-lag well below cluster-node-timeout"
    if not least or not lag:
        text = "while it is cut off, it still grants locks (min-replicas-to-write is 0)"
        yield patient.finding(WARNING, text, f"{cure}, and give each shard two replicas")
        return
    if timeout and lag * 1000 >= timeout:
        text = f"min-replicas-max-lag is {lag} s, no shorter than cluster-node-timeout ({timeout} ms)"
        yield patient.finding(WARNING, text, cure)
    if expected <= least:
        text = f"writes need {least} replicas, and it has {expected}: a promoted one has fewer, and refuses all writes"
        yield patient.finding(WARNING, text, f"give each shard {least + 1} replicas")


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() else 0


def _rights(patient: Patient, client: Client, prefix: bytes, slots: Collection[int]) -> Iterator[Finding]:
    try:
        with connected(patient.master) as server:
            server.execute_command("ASKING")
    except redis.RedisError as error:
        text = f"names whose slot is being moved cannot be locked: ASKING is answered by {described(error)}"
        yield patient.finding(WARNING, text, "grant +asking")
    unused = f"redlatch-doctor-{secrets.token_hex(8)}"
    names = (f"{unused}-{number}" for number in islice(count(), TRIED))
    name = next((each for each in names if slot_of(key_of(prefix, each)) in slots), None)
    if name is None:
        yield patient.finding(FINE, "no name with this prefix is on it")
    else:
        yield from check_rights(patient, client, name)


def _marker(patient: Patient, prefix: bytes, slots: Collection[int], trusted: bool) -> Finding:
    node = patient.master.name
    keys = list(islice(marker_keys(prefix, node, slots), EARLIER_KEYS))
    try:
        # The first question also shows whether the guard has the rights that it needs.
        marker = marker_of(patient.master, keys[0]) or _earlier_marker(patient, keys[1:])
    except UNREADABLE as error:
        return unreadable_marker(patient, keys[0], error)
    if marker is None:
        return patient.finding(FINE, "no client with a guard has used it lately with this prefix")
    if marker.trusted != trusted:
        text = f"{marker.shown_owner()} uses it with trust_persistence={marker.trusted}"
        return patient.finding(UNSAFE, text, "give all clients the same guard, and this command its options")
    return patient.finding(FINE, f"clients have marked it; the longest ttl in use is {marker.horizon} ms")


def _earlier_marker(patient: Patient, keys: list[bytes]) -> Marker | None:
    with connected(patient.master) as server:
        for key in keys:
            text: Any = server.get(key)
            if text is not None:
                return Marker.read(text)
    return None
