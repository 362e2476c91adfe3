"""The setting REDLATCH of a Django project: for each alias, MASTERS and OPTIONS are the arguments of a client.

MASTERS may also be a function: Django's error reports show settings, but not the results of functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

DEFAULT_ALIAS = "default"

_KEYS = {"MASTERS", "OPTIONS"}


def aliases() -> list[str]:
    return list(_setting())


def arguments_of(alias: str) -> tuple[Any, dict[str, Any]]:
    setting = _setting()
    if alias not in setting:
        known = ", ".join(map(repr, setting)) or "none"
        raise ImproperlyConfigured(f"settings.REDLATCH has no alias {alias!r}; its aliases are: {known}")
    entry = setting[alias]
    if not isinstance(entry, Mapping) or "MASTERS" not in entry or not set(entry) <= _KEYS:
        raise ImproperlyConfigured(
            f"settings.REDLATCH[{alias!r}] needs a dictionary with 'MASTERS', a list of URLs, and, if you like, "
            "'OPTIONS', the other arguments of redlatch.Client"
        )
    options = entry.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(
            f"settings.REDLATCH[{alias!r}]['OPTIONS'] needs a dictionary, not {type(options).__name__}"
        )
    masters = entry["MASTERS"]
    return masters() if callable(masters) else masters, dict(options)


def _setting() -> Mapping[str, Any]:
    setting = getattr(settings, "REDLATCH", {})
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured(
            "settings.REDLATCH needs a dictionary with an entry for each alias, such as "
            f"{{'default': {{'MASTERS': ['redis://10.0.0.1']}}}}, not {type(setting).__name__}"
        )
    return setting
