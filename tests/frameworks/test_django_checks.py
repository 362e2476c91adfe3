"""The system checks of the app `redlatch.django`: of the settings alone, and of real masters with --deploy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import project
from support.faces import await_true

from redlatch import Client, Guard
from redlatch.testing import Masters, cluster

project.configure()

from django.core import checks  # noqa: E402

from redlatch.django import apps  # noqa: E402

Fleet = Callable[..., Masters]

DJANGO, OURS = "django.core.cache.backends.redis.RedisCache", "redlatch.django.cache.RedisCache"

EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}


def found(deploy: bool = True, **settings: Any) -> dict[str, str]:
    """Return the messages of the checks by their ids; each id comes once."""
    with project.overridden(**{"CACHES": {}, "REDLATCH": {}, **settings}):
        messages = checks.run_checks(tags=[apps.TAG], include_deployment_checks=deploy)
    assert len({message.id for message in messages}) == len(messages)
    return {message.id: message.msg for message in messages}


def setting(masters: Any, **options: Any) -> dict[str, Any]:
    return {"default": {"MASTERS": masters, "OPTIONS": options}}


def test_a_good_project_has_no_messages(three: list[str], url: str) -> None:
    cache = {"default": {"BACKEND": OURS, "LOCATION": url}, "local": {"BACKEND": LOCAL}}
    assert found(REDLATCH=setting(three), CACHES=cache) == {}
    assert found() == {}


LOCAL = "django.core.cache.backends.locmem.LocMemCache"


@pytest.mark.parametrize("deploy", [False, True])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "needs a dictionary with an entry for each alias"),
        ({"default": {"MASTERS": []}}, "masters: at least one is needed"),
        ({"default": {"MASTERS": "redis://a", "OPTIONS": {"ttl": 0}}}, "ttl: a finite number"),
    ],
)
def test_a_wrong_setting_is_an_error_without_io(wrong: Any, message: str, deploy: bool) -> None:
    messages = found(deploy, REDLATCH=wrong)
    assert list(messages) == ["redlatch.E001"]
    assert message in messages["redlatch.E001"]


def test_a_cache_that_names_a_missing_alias_is_an_error() -> None:
    messages = found(False, CACHES={"default": {"BACKEND": OURS, "LOCATION": "redis://a", "REDLATCH": "jobs"}})
    assert messages == {
        "redlatch.E001": "settings.CACHES['default'] names the alias 'jobs', which settings.REDLATCH does not have."
    }


def test_without_deploy_no_master_is_asked(closed_ports: Callable[[int], list[str]]) -> None:
    assert found(False, REDLATCH=setting(closed_ports(3))) == {}


def test_masters_without_a_quorum_are_an_error(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "CONNECT_TIMEOUT", 0.1)
    masters = fleet(3)
    masters.kill(0)
    masters.kill(2)
    messages = found(REDLATCH=setting(masters.urls))
    assert list(messages) == ["redlatch.E002"]
    assert "fewer masters vote than the 2 that must agree" in messages["redlatch.E002"]
    for index in (0, 2):
        assert masters.urls[index].removeprefix("redis://") in messages["redlatch.E002"]


def test_a_master_that_does_not_vote_is_a_warning(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    masters = fleet(3)
    # New masters vote when all of them have been seen.
    assert found(REDLATCH=setting(masters.urls)) == {}
    monkeypatch.setattr(apps, "CONNECT_TIMEOUT", 0.1)
    masters.kill(1)
    messages = found(REDLATCH=setting(masters.urls))
    assert list(messages) == ["redlatch.W001"]
    assert f"not every master votes: {masters.urls[1].removeprefix('redis://')}" in messages["redlatch.W001"]


def test_masters_that_serve_clients_with_another_guard_are_an_error(fleet: Fleet) -> None:
    urls = fleet(3).urls
    with Client(urls, guard=Guard(strict=True)) as client:
        await_true(lambda: client.health().ready)
        messages = found(REDLATCH=setting(urls))
    assert list(messages) == ["redlatch.E002"]


def test_no_guard_is_a_warning_only_with_several_masters(fleet: Fleet) -> None:
    assert list(found(REDLATCH=setting(fleet(3).urls, guard=None))) == ["redlatch.W002"]
    assert found(REDLATCH=setting(fleet(1).urls, guard=None)) == {}


def test_a_master_that_may_evict_locks_is_a_warning(fleet: Fleet) -> None:
    messages = found(REDLATCH=setting(fleet(1, config=EVICTING).urls))
    assert list(messages) == ["redlatch.W003"]
    assert "maxmemory-policy allkeys-lru" in messages["redlatch.W003"]


def test_two_masters_are_a_warning(fleet: Fleet) -> None:
    assert list(found(REDLATCH=setting(fleet(2).urls))) == ["redlatch.W004"]


def test_a_cluster_of_two_shards_is_one_master() -> None:
    made = cluster(2, replicas=0)
    with made as urls:
        assert found(REDLATCH=setting(made.url)) == {}
        made.kill(0)
        messages = found(REDLATCH=setting(made.url))
        assert list(messages) == ["redlatch.E002"] and made.address(0) in messages["redlatch.E002"]
        assert "redis+cluster://" in found(REDLATCH=setting(urls[1]))["redlatch.E002"]


@pytest.mark.parametrize("backend", [OURS, "redlatch.django.django_redis_cache.RedisCache"])
def test_a_cache_with_locks_of_its_own_is_a_warning(fleet: Fleet, backend: str) -> None:
    messages = found(CACHES={"default": {"BACKEND": backend, "LOCATION": fleet(1, config=EVICTING).urls[0]}})
    assert list(messages) == ["redlatch.W005", "redlatch.W003"]
    assert "settings.CACHES['default']: cache.clear() deletes locks" in messages["redlatch.W005"]


@pytest.mark.parametrize("backend", [DJANGO, OURS, "django_redis.cache.RedisCache"])
def test_a_cache_in_the_database_of_a_master_is_a_warning(three: list[str], backend: str) -> None:
    for number, expected in ((0, ["redlatch.W005"]), (1, [])):
        cache = {"default": {"BACKEND": backend, "LOCATION": f"{three[1]}/{number}"}}
        assert list(found(REDLATCH=setting(three), CACHES=cache)) == expected


def test_a_sharded_cache_is_left_out(three: list[str]) -> None:
    entry = {
        "BACKEND": "redlatch.django.django_redis_cache.RedisCache",
        "LOCATION": three,
        "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
    }
    assert found(CACHES={"default": entry}) == {}


MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


def test_manage_py_check_deploy_names_what_is_wrong(fleet: Fleet, tmp_path: Path) -> None:
    masters = fleet(3, config=EVICTING)
    (tmp_path / "manage.py").write_text(MANAGE)
    (tmp_path / "shop_settings.py").write_text(
        f"SECRET_KEY = 'of no use'\nINSTALLED_APPS = ['redlatch.django']\nREDLATCH = {setting(masters.urls)!r}\n"
    )

    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)

    plain, deploy = manage("check"), manage("check", "--deploy", "--tag", "redlatch")
    assert (plain.returncode, deploy.returncode) == (0, 0)
    assert "System check identified no issues" in plain.stdout
    assert deploy.stderr.count("(redlatch.W003)") == 3
    masters.kill(0)
    masters.kill(1)
    deploy = manage("check", "--deploy", "--tag", "redlatch")
    assert deploy.returncode == 1
    assert "(redlatch.E002)" in deploy.stderr
