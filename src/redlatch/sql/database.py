"""A database as the only master of a client: its name, and the engine that opens its connections."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy.engine import Dialect, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from redlatch.errors import ConfigurationError
from redlatch.sql.files import refuse_private

# Seconds for a driver's connect, and the names of its argument.
CONNECT_SECONDS = 5
_TIMEOUTS = {
    "psycopg": "connect_timeout",
    "psycopg2": "connect_timeout",
    "asyncpg": "timeout",
    "pymysql": "connect_timeout",
    "mysqldb": "connect_timeout",
    "asyncmy": "connect_timeout",
    "aiomysql": "connect_timeout",
}

# Some poolers refuse the transaction in which these drivers look up types.
_PLAIN = {driver: {"use_native_hstore": False} for driver in ("psycopg", "psycopg2")}

FAMILIES = ("postgresql", "mysql", "mariadb", "sqlite")


class Database:
    """A database as a master; its `address` has no credentials."""

    listed_as = "database"
    group = None
    by_db = False

    def __init__(self, database: object) -> None:
        self.engine: Engine | AsyncEngine = _engine_of(database)
        url = self.engine.url
        backend = url.get_backend_name()
        if backend not in FAMILIES:
            raise ConfigurationError(f"database: {backend} is not supported; use one of {', '.join(FAMILIES)}")
        if backend == "sqlite":
            refuse_private(url)
        self.family = "mysql" if backend == "mariadb" else backend
        # Several hosts, or the folder of a socket, are an option.
        hosts = {name: value for name, value in url.query.items() if name in ("host", "unix_socket")}
        plain = sqlalchemy.URL.create(backend, host=url.host, port=url.port, database=url.database, query=hosts)
        self.address = self.name = plain.render_as_string()


def _without_pool(engine: Engine) -> NullPool:
    pool = engine.pool
    return NullPool(pool._creator, dialect=pool._dialect, _dispatch=pool.dispatch)


def _limits_of(url: sqlalchemy.URL, driver: str) -> dict[str, Any]:
    name = _TIMEOUTS.get(driver)
    return {} if name is None or name in url.query else {name: CONNECT_SECONDS}


def _options_of(dialect: Dialect | type[Dialect]) -> dict[str, Any]:
    # SQLAlchemy must send no BEGIN on a new connection of PostgreSQL either.
    return {"isolation_level": "AUTOCOMMIT", **_PLAIN.get(dialect.driver, {})} if dialect.name == "postgresql" else {}


def _engine_of(database: object) -> Engine | AsyncEngine:
    try:
        if isinstance(database, Engine):
            pool = _without_pool(database)
            return sqlalchemy.create_engine(database.url, pool=pool, **_options_of(database.dialect))
        if isinstance(database, AsyncEngine):
            pool = _without_pool(database.sync_engine)
            return create_async_engine(database.url, pool=pool, **_options_of(database.dialect))
        if not isinstance(database, (str, sqlalchemy.URL)):
            what = type(database).__name__
            raise TypeError(f"database: a URL, an Engine or an AsyncEngine is needed, not {what}")
        url = make_url(database)
        dialect = url.get_dialect()
        options = {"poolclass": NullPool, "connect_args": _limits_of(url, dialect.driver), **_options_of(dialect)}
        asynchronous = dialect.is_async
        return create_async_engine(url, **options) if asynchronous else sqlalchemy.create_engine(url, **options)
    except (ArgumentError, NoSuchModuleError, ValueError):
        # SQLAlchemy quotes the URL, which may have a password.
        raise ConfigurationError(
            "database: a URL of SQLAlchemy is needed, such as 'postgresql+psycopg://user@host/database'"
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"database: its driver is not installed ({error.name}); name another one in the URL, as in "
            "'postgresql+psycopg://', or install it"
        ) from None
