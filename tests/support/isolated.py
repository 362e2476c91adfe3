"""Cut the master of a Sentinel group off, together with a client, while the rest promotes a replica.

It runs as a program in namespaces of its own, so that nothing outlives it (`COMMAND`). There is a second network
namespace for the master and its client. A route cuts the two apart. It prints what the clients have got, as JSON.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import redis

from redlatch import Client, QuorumUnavailable
from support.faces import ask, await_true, wins

COMMAND = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]

CLONE_NEWNET = 0x40000000
HERE, THERE = "10.77.0.1", "10.77.0.2"

# Two replicas: after the fail-over the new master still has one, which min-replicas-to-write may ask for.
REPLICAS = (7001, 7002)
SENTINELS = (7003, 7004, 7005)


def ip(*words: str, inside: int | None = None) -> None:
    """Change the network, perhaps that of another process."""
    into = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    subprocess.run([*into, "ip", *words], check=True)


def join_second_network() -> int:
    """Make the second network, and return the id of a process in it."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    await_true(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
    ip("link", "set", "lo", "up")
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    ip("link", "set", "there", "netns", str(holder.pid))
    for address, name, inside in ((HERE, "here", None), (THERE, "there", holder.pid)):
        ip("addr", "add", f"{address}/24", "dev", name, inside=inside)
        ip("link", "set", name, "up", inside=inside)
    ip("link", "set", "lo", "up", inside=holder.pid)
    return holder.pid


def enter_network_of(pid: int) -> None:
    """Move this thread into the network of a process. Its children and the threads that it starts follow."""
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def serve(program: str, folder: Path, port: int, lines: list[str], *arguments: str) -> None:
    """Start a server in the network of this thread."""
    path = folder / f"{port}.conf"
    usual = [f"port {port}", f"dir {folder}", 'save ""', "protected-mode no", f"dbfilename {port}.rdb"]
    path.write_text("\n".join([*usual, "repl-diskless-sync-delay 0", *lines]) + "\n")
    subprocess.Popen([program, str(path), *arguments], stdout=subprocess.DEVNULL)


def state_of(port: int) -> dict[str, Any]:
    """Return what a server says of its replication; nothing while it starts, or cuts its connections."""
    with contextlib.suppress(redis.ConnectionError):
        return dict(ask(f"redis://{HERE}:{port}").info("replication"))
    return {}


def has_synchronized(port: int) -> bool:
    return state_of(port).get("master_link_status") == "up"


def knows_all(port: int) -> bool:
    """Return whether a sentinel knows the replicas and the other sentinels."""
    with contextlib.suppress(redis.ConnectionError):
        state = ask(f"redis://{HERE}:{port}").sentinel_master("g")
        return (state["num-slaves"], state["num-other-sentinels"]) == (len(REPLICAS), len(SENTINELS) - 1)
    return False


def is_refused(client: Client) -> bool:
    """Return whether the master of a client takes no locks."""
    try:
        client.lock("another").acquire(blocking=False)
    except QuorumUnavailable:
        return True
    return False


@contextlib.contextmanager
def cut_off() -> Iterator[None]:
    ip("route", "add", "blackhole", f"{THERE}/32")
    yield
    ip("route", "del", "blackhole", f"{THERE}/32")


def main(program: str, *lines: str) -> None:
    """Run the scenario; `lines` are further directives of the master and the replicas."""
    pid = join_second_network()
    there = concurrent.futures.ThreadPoolExecutor(1, initializer=enter_network_of, initargs=(pid,))
    folder = Path(tempfile.mkdtemp())
    there.submit(serve, program, folder, 7000, list(lines)).result()
    watch = [f"sentinel monitor g {THERE} 7000 2"]
    watch += ["sentinel down-after-milliseconds g 500", "sentinel failover-timeout g 2000"]
    for port in REPLICAS:
        serve(program, folder, port, [*lines, f"replicaof {THERE} 7000"])
        await_true(partial(has_synchronized, port))
    for port in SENTINELS:
        serve(program, folder, port, watch, "--sentinel")
    for port in SENTINELS:
        await_true(partial(knows_all, port))
    url = f"redis+sentinel://{','.join(f'{HERE}:{port}' for port in SENTINELS)}/g"
    isolated = there.submit(Client, url).result()
    there.submit(isolated.connect).result()
    lock = isolated.lock("x", ttl=60.0)
    with cut_off():
        await_true(lambda: "master" in [state_of(port).get("role") for port in REPLICAS])
        if lines:
            # The master counts its replicas by their last sign of life.
            await_true(lambda: there.submit(is_refused, isolated).result())
        found = {"isolated": there.submit(wins, lock).result()}
        with Client(url) as client:
            rival = client.lock("x")
            await_true(lambda: wins(rival))
            found["both"] = there.submit(lock.remaining).result() > 0 and rival.remaining() > 0
    if found["isolated"]:
        # The sentinels make the former master a replica, and the client moves to the new one.
        await_true(lambda: there.submit(lock.remaining).result() == 0)
    there.submit(isolated.close).result()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
