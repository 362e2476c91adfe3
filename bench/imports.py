"""The time that a program needs to import and make a client. A cycle of these contenders is a Python process.

The process makes the client but does not connect it. It makes it, because some packages import modules only at the
first use.
"""

from __future__ import annotations

import subprocess
import sys

from bench.contender import Contender, contender

NOWHERE = "redis://127.0.0.1:1"


class ImportTime(Contender):
    """A Python process that runs one statement and ends."""

    modes = ("cycle",)
    statement = "pass"

    def open(self, urls: list[str]) -> None:
        """Do nothing, because these contenders use no masters."""

    def acquire(self, name: str) -> None:
        subprocess.run([sys.executable, "-c", self.statement], check=True, stderr=subprocess.DEVNULL)

    def release(self, held: object) -> None:
        """Do nothing, because the process has ended."""


def statement(module: str, package: str, text: str) -> None:
    """Register the import of one package as a contender called import-PACKAGE."""
    cls = type(f"Import_{module}", (ImportTime,), {"module": module, "package": package, "statement": text})
    contender(f"import-{package or 'nothing'}")(cls)


statement("", "", "pass")
statement("redlatch", "redlatch", f"import redlatch; redlatch.Client('{NOWHERE}')")
statement("redis", "redis", f"import redis; redis.Redis.from_url('{NOWHERE}').lock('name')")
statement("redlock", "redlock-py", f"import redlock; redlock.Redlock(['{NOWHERE}'])")
statement(
    "pottery",
    "pottery",
    f"import pottery, redis; pottery.Redlock(key='k', masters={{redis.Redis.from_url('{NOWHERE}')}})",
)
statement(
    "redis_lock",
    "python-redis-lock",
    f"import redis, redis_lock; redis_lock.Lock(redis.Redis.from_url('{NOWHERE}'), 'name')",
)
statement("coredis", "coredis", f"import coredis, coredis.patterns.lock; coredis.Redis.from_url('{NOWHERE}')")
statement("aioredlock", "aioredlock", f"import aioredlock; aioredlock.Aioredlock(['{NOWHERE}'])")
