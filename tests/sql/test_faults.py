"""What the errors of a database mean."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from redlatch.sql.faults import code_of, is_busy, is_over, text_of

from .conftest import FindUrl


def test_the_text_of_an_error_has_neither_statement_nor_parameters(url_of: FindUrl) -> None:
    engine = sa.create_engine(url_of("postgresql+psycopg"))
    with engine.connect() as raw, pytest.raises(sa.exc.DBAPIError) as error:
        raw.execute(sa.text("SELECT :secret FROM nothing"), {"secret": "t0ken"})
    assert text_of(error.value) == 'relation "nothing" does not exist'
    assert text_of(RuntimeError()) == "RuntimeError"
    assert text_of(RuntimeError("two\nlines")) == "two lines"
    engine.dispose()


def error(*arguments: object, **attributes: object) -> DBAPIError:
    original = sqlite3.OperationalError(*arguments)
    vars(original).update(attributes)
    return OperationalError("a statement", {}, original)


@pytest.mark.parametrize(
    ("given", "code", "busy", "over"),
    [
        (error(1213, "deadlock"), 1213, True, False),
        (error(1205, "timeout", sqlstate="HY000"), 1205, True, False),
        (error("lock timeout", sqlstate="55P03"), "55P03", True, False),
        (error("deadlock", pgcode="40P01"), "40P01", True, False),
        (error("locked", sqlite_errorcode=5), 5, True, False),
        (error("snapshot", sqlite_errorcode=5 | 2 << 8), 5 | 2 << 8, True, False),
        (error("standby", sqlstate="25006"), "25006", False, True),
        (error("no code"), None, False, True),
        (error(1146, "no table"), 1146, False, False),
    ],
)
def test_what_a_code_means(given: DBAPIError, code: object, busy: bool, over: bool) -> None:
    assert (code_of(given), is_busy(given), is_over(given)) == (code, busy, over)


def test_a_connection_that_broke_is_not_busy() -> None:
    broken = error(1205, "x")
    broken.connection_invalidated = True
    assert not is_busy(broken) and is_over(broken)
