"""Empty masters between two tests.

FLUSHALL of several masters deletes all markers at once, as a loss of their memory does. So clients that knew the
masters quarantine all of them for `max_ttl`. `clear` keeps the markers.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from ..guard.marker import MARKER

TOGETHER = 1000


def clear(urls: Iterable[str]) -> None:
    """Remove all keys of masters except the guard's markers. This includes all locks, of any holder.

    Call it between two tests. Clients stay connected and continue at once. Held locks are lost, as if their keys had
    been deleted by hand.

    Args:
        urls: the URLs of the masters, as for a client; each may name a database.

    Raises:
        redis.RedisError: a master cannot be reached, or refuses.
    """
    for url in urls:
        with redis.Redis.from_url(url) as server:
            doomed: list[bytes] = []
            for key in server.scan_iter(count=TOGETHER):
                if not key.endswith(MARKER):
                    doomed.append(key)
                if len(doomed) >= TOGETHER:
                    server.unlink(*doomed)
                    doomed.clear()
            if doomed:
                server.unlink(*doomed)
