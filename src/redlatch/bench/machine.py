"""What a race was measured on: the class of the machine and the versions, nothing that names it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import redis

from redlatch.bench import ours, peers
from redlatch.bench.contender import REGISTRY

CONTENDERS = (ours, peers)  # each registers its own


def machine_class(url: str) -> dict[str, Any]:
    """Return what kind of machine this is, without its name.

    Args:
        url: one of the masters, for the version of the server.
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
    """Return the versions of all contenders that are installed, and of what they stand on."""
    found = {}
    for name in sorted({cls.package for cls, _ in REGISTRY.values()} | {"hiredis", "uvloop"} - {""}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
