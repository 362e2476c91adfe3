"""Databases of Django for tests. Settings that another test has made stay as they are."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import django
import pymysql
from django.conf import settings
from django.db import connections

ENGINES = {
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "sqlite": "django.db.backends.sqlite3",
}


def prepare() -> None:
    """Configure Django unless it is configured. The driver for MariaDB is PyMySQL."""
    pymysql.install_as_MySQLdb()
    if not settings.configured:
        settings.configure(SECRET_KEY="of no use", INSTALLED_APPS=["redlatch.django"], USE_TZ=True)
        django.setup()


def add_database(alias: str, url: str, options: dict[str, Any] | None = None) -> None:
    """Add a database under an alias.

    Args:
        alias: the alias.
        url: the URL of the database, as for SQLAlchemy.
        options: the options of the driver.
    """
    prepare()
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    named: dict[str, Any] = {"ENGINE": ENGINES[scheme], "OPTIONS": dict(options or {})}
    if scheme == "sqlite":
        named["NAME"] = parts.path[1:]
    else:
        named |= {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": str(parts.port)}
    # This fills in the defaults. It insists on a database "default".
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: named})[alias]


def remove_database(alias: str) -> None:
    """Close the connection of this thread, and forget the database."""
    connections[alias].close()
    del connections[alias]
    connections.databases.pop(alias, None)
