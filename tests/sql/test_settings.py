"""The settings of a client of a database."""

from __future__ import annotations

import pytest

from redlatch import ConfigurationError
from redlatch.sql.settings import Settings


def settings(
    family: str = "postgresql", table: str | None = None, mode: str = "table", dialect: str = "redlatch"
) -> Settings:
    return Settings.of(family, table, mode, dialect, "me")


def test_the_usual_table_has_fences() -> None:
    usual = settings()
    assert usual.table is not None and usual.table.fullname == "redlatch_lock"
    assert usual.has_fences and not usual.by_session
    assert usual.channel == "redlatch_redlatch_lock"


def test_a_session_has_no_table_and_no_fences() -> None:
    session = settings(mode="session")
    assert session.by_session and session.table is None and not session.has_fences
    assert session.channel == "redlatch"


def test_shedlock_has_its_own_table_without_fences() -> None:
    shedlock = settings(dialect="shedlock")
    assert shedlock.table is not None and shedlock.table.name == "shedlock" and not shedlock.has_fences


def test_a_channel_is_no_longer_than_an_identifier() -> None:
    assert len(settings(table="x" * 63).channel) == 63


@pytest.mark.parametrize(
    ("family", "table", "mode", "dialect", "what"),
    [
        ("postgresql", None, "rows", "redlatch", "mode"),
        ("postgresql", None, "table", "quartz", "dialect"),
        ("sqlite", None, "session", "redlatch", "mode"),
        ("postgresql", "locks", "session", "redlatch", "mode"),
        ("postgresql", None, "session", "shedlock", "mode"),
        ("sqlite", None, "table", "shedlock", "dialect"),
        ("mysql", "a b", "table", "redlatch", "table"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    family: str, table: str | None, mode: str, dialect: str, what: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{what}: "):
        settings(family, table, mode, dialect)
