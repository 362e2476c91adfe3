"""A Django project for tests. Its settings are those of the first test that asks; tests override what they need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import django
from django.conf import settings


def configure() -> None:
    """Set Django up, once for the whole run."""
    if not settings.configured:
        settings.configure(SECRET_KEY="of no use", INSTALLED_APPS=["redlatch.django"], USE_TZ=True)
        django.setup()


@contextlib.contextmanager
def overridden(**changed: Any) -> Iterator[None]:
    """Override settings, as Django's own tests do."""
    configure()
    from django.test import override_settings

    with override_settings(**changed):
        yield
