"""`redlatch.compat.install`: drop-ins under the originals' names; each case in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from support.faces import PATIENCE

import redlatch.compat


def run(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("redlock", "from redlock import Lock, MultipleRedlockException, Redlock as ours"),
        ("redis_lock", "from redis_lock import Lock as ours; import redis_lock.django_cache as cache"),
        ("aioredlock", "from aioredlock import Aioredlock as ours; from aioredlock.errors import LockError"),
    ],
)
def test_the_next_import_gives_the_drop_in_until_it_is_uninstalled(name: str, script: Any) -> None:
    extra = "from django.conf import settings; settings.configure()\n" if name == "redis_lock" else ""
    if name == "aioredlock" and importlib.util.find_spec(name) is None:
        pytest.skip("aioredlock needs Python 3.11 or less")
    run(f"""{extra}
import sys
from redlatch import compat
compat.install("{name}")
compat.install("{name}")  # a second time changes nothing
{script}
assert ours.__module__ == "redlatch.compat.{name}", ours.__module__
assert "cache" not in globals() or cache.RedisCache.lock.__globals__["Lock"] is ours
compat.uninstall("{name}")
for module in [m for m in sys.modules if m == "{name}" or m.startswith("{name}.")]:
    assert "compat" not in sys.modules[module].__file__
{script.split(";")[0].replace("as ours", "as theirs")}
assert theirs.__module__.startswith("{name}"), theirs.__module__
""")


@pytest.mark.parametrize("name", ["redlock", "redis_lock"])
def test_install_fails_and_changes_nothing_if_the_original_is_imported_already(name: str) -> None:
    run(f"""
import {name}, redis, redis.lock
from redlatch import compat
theirs = redis.lock.Lock
try:
    compat.install("redis", "{name}")
except ImportError as error:
    assert "before its first import" in str(error), error
    assert redis.lock.Lock is theirs
else:
    raise SystemExit("it was installed")
""")


def test_exceptions_are_the_originals_own_if_the_original_is_installed() -> None:
    run("""
import redlock, redis_lock, pottery
from redlatch.compat import pottery as p, redis_lock as l, redlock as r
assert r.MultipleRedlockException is redlock.MultipleRedlockException
assert l.NotAcquired is redis_lock.NotAcquired
assert p.ReleaseUnlockedLock is pottery.ReleaseUnlockedLock
""")


@pytest.mark.parametrize("name", ["redlock", "redis_lock", "pottery", "aioredlock"])
def test_the_drop_ins_work_without_the_originals(name: str) -> None:
    run(f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{name}":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import importlib
module = importlib.import_module("redlatch.compat.{name}")
raised = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Exception)]
assert any(error.__module__.startswith("redlatch.compat.{name}") for error in raised)
""")


def test_the_lock_classes_of_redis_py_are_replaced_in_place(url: str, name: str) -> None:
    run(f"""
import redis, redis.asyncio, redis.lock, redis.asyncio.lock
theirs, theirs_async = redis.lock.Lock, redis.asyncio.lock.Lock
from redlatch import compat
compat.install("redis")
from redlatch.compat.redis_py import AsyncLock, Lock
assert redis.lock.Lock is redis.client.Lock is Lock
assert redis.asyncio.lock.Lock is redis.asyncio.client.Lock is AsyncLock
client = redis.Redis.from_url("{url}")
with client.lock("{name}", timeout=5) as lock:
    assert type(lock) is Lock and lock.local.lease.remaining() > 0
assert type(redis.asyncio.Redis.from_url("{url}").lock("x")) is AsyncLock
compat.uninstall()
assert (redis.lock.Lock, redis.asyncio.lock.Lock) == (theirs, theirs_async)
assert type(client.lock("{name}")) is theirs
with Lock(client, "{name}", timeout=5):
    pass  # and ours goes on
""")


def test_the_lock_classes_of_pottery_are_replaced_in_place() -> None:
    run("""
import pottery, pottery.redlock
theirs = pottery.Redlock
from redlatch import compat
compat.install("pottery")
from redlatch.compat.pottery import AIORedlock, Redlock, synchronize
assert pottery.Redlock is pottery.redlock.Redlock is Redlock
assert pottery.AIORedlock is AIORedlock and pottery.synchronize is synchronize
compat.uninstall("pottery")
assert pottery.Redlock is pottery.redlock.Redlock is theirs
""")


def test_an_unknown_name_is_refused() -> None:
    for call in (redlatch.compat.install, redlatch.compat.uninstall):
        with pytest.raises(ValueError, match=r"'redis_lock'.*not 'redlock-py'"):
            call("redlock-py")
