"""Notices of other processes, while idle and beside statements."""

from __future__ import annotations

import select

import pytest
import sqlalchemy as sa
from support.faces import PATIENCE

from redlatch.sql.connection import connect
from redlatch.sql.database import Database
from redlatch.sql.notices import notices_of
from redlatch.wire.bridge.bridge import BackendLost

from .conftest import FindUrl, execute

both = pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2"])


@both
def test_a_notice_is_heard_while_idle(url_of: FindUrl, driver: str) -> None:
    engine = sa.create_engine(url_of(driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as raw:
        notices = notices_of(raw, 'a "channel"')
        assert notices is not None
        execute(url_of("postgresql+psycopg"), "SELECT pg_notify('a \"channel\"', 'one'), pg_notify('other', 'two')")
        assert select.select([notices.fileno()], [], [], PATIENCE)[0]
        notices.read()
        assert notices.take() == ["one"]
        assert notices.take() == []
    engine.dispose()


@both
def test_a_notice_that_comes_beside_an_answer_is_heard(url_of: FindUrl, driver: str) -> None:
    engine = sa.create_engine(url_of(driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as raw:
        notices = notices_of(raw, "channel")
        assert notices is not None
        execute(url_of("postgresql+psycopg"), "SELECT pg_notify('channel', 'one')")
        assert select.select([notices.fileno()], [], [], PATIENCE)[0]
        raw.execute(sa.text("SELECT 1"))
        # Nothing may be left to read on the descriptor.
        assert notices.take() == ["one"]
    engine.dispose()


@both
def test_the_end_of_the_connection_is_an_end(url_of: FindUrl, driver: str) -> None:
    connection = connect(Database(url_of(driver)).engine)
    notices = connection.listen("channel")
    assert notices is not None
    number = connection.run(lambda raw: raw.execute(sa.text("SELECT pg_backend_pid()")).scalar())
    execute(url_of("postgresql+psycopg"), f"SELECT pg_terminate_backend({number})")
    assert select.select([notices.fileno()], [], [], PATIENCE)[0]
    with pytest.raises(BackendLost):
        while True:
            notices.read()
    connection.close()


def test_other_databases_tell_nothing(url_of: FindUrl) -> None:
    for driver in ("mysql+pymysql", "sqlite"):
        engine = sa.create_engine(url_of(driver))
        with engine.connect() as raw:
            assert notices_of(raw, "channel") is None
        engine.dispose()
