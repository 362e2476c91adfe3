"""The headers of a `Singleton`'s message, and the ttl of its lock.

The worker's main process gives each message a delivery number. It is part of the lock's label while the task runs, so
the main process can end the lock of a pool process that it has killed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

NAME = "redlatch_name"
TOKEN = "redlatch_token"
DELIVERY = "redlatch_delivery"

QUEUED = "queued"


@dataclass(frozen=True)
class Passed:
    """The lock that a message passes on. `delivery` is empty if no worker has received the message."""

    name: str
    token: str = ""
    delivery: str = ""

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> Passed | None:
        found = headers or {}
        name, token, delivery = (found.get(key) for key in (NAME, TOKEN, DELIVERY))
        if not isinstance(name, str) or not name:
            return None
        return cls(name, token if isinstance(token, str) else "", delivery if isinstance(delivery, str) else "")

    def headers(self, others: Mapping[str, Any] | None) -> dict[str, Any]:
        kept = {key: value for key, value in (others or {}).items() if key not in (NAME, TOKEN, DELIVERY)}
        return {**kept, NAME: self.name, TOKEN: self.token}


def new_delivery() -> str:
    return secrets.token_hex(16)


def label(delivery: str, task_id: str) -> str:
    return f"{delivery}:{task_id}"


def task_id_in(label: str) -> str:
    return label.partition(":")[2]


def seconds_in_queue(queue_ttl: float, options: Mapping[str, Any], zone: tzinfo = UTC) -> float:
    """Return the ttl of a message's lock, in seconds, for these options of `apply_async`.

    A task never runs after its `expires`, so its lock lives at most a second longer.
    """
    delay = _seconds(options.get("countdown"), _seconds(options.get("eta"), 0.0, zone), zone)
    seconds = queue_ttl + max(0.0, delay)
    return min(seconds, max(0.0, _seconds(options.get("expires"), seconds, zone)) + 1.0)


def _seconds(moment: Any, default: float, zone: tzinfo) -> float:
    if moment is None:
        return default
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
        return (aware - datetime.now(UTC)).total_seconds()
    return float(moment)
