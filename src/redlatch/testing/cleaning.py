"""Empty masters between two tests, without the outage that a flush of several masters costs.

After FLUSHALL of several masters no client can tell whether they hold nothing, or have forgotten what they held: all
markers are gone at once in both cases. So clients that knew them keep all of them out for `max_ttl`. There is no safe
rule that lets them vote earlier. `clear` leaves the markers, so the masters have forgotten nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from ..guard.marker import MARKER

# How many keys one command asks for or removes.
TOGETHER = 1000


def clear(urls: Iterable[str]) -> None:
    """Remove all keys of masters but the guard's markers, with their locks, whoever holds them.

    Call it between two tests. Clients stay connected and go on at once. A lock that was held is lost, as if its key had
    been deleted by hand.

    Args:
        urls: of the masters, as for a client; each may name a database.

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
