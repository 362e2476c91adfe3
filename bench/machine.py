"""The machine of a race: its class and the installed versions, but no name of it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import redis

from bench import ours, peers
from bench.contender import REGISTRY

# The modules that register the contenders.
CONTENDERS = (ours, peers)


def machine_class(url: str) -> dict[str, Any]:
    """Return the class of this machine, without its name.

    Args:
        url: the URL of one master, to ask for the server's version.
    """
    with redis.Redis.from_url(url) as master:
        info: dict[str, Any] = master.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "architecture": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": f"{name} {info.get('valkey_version') or info['redis_version']}",
        "packages": packages(),
    }


def packages() -> dict[str, str]:
    """Return the versions of all installed contenders, of hiredis and of uvloop."""
    found = {}
    for name in sorted({cls.package for cls, _ in REGISTRY.values()} | {"hiredis", "uvloop"} - {""}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
