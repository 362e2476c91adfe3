"""A search for an order of acquires and releases that explains a history (Wing and Gong 1993, with remembered states).

For a mutex, an acquire takes effect at one moment between its request and its grant, and only while no other holder has
the lock. Its release takes effect at the end of the grant. The search is exponential at worst, so use it on samples.
"""

from __future__ import annotations

from sim.grants import Grant


def explainable(grants: list[Grant]) -> bool:
    """Return whether there is an order in which each holder had the lock alone during its whole grant."""
    ordered = sorted(grants, key=lambda grant: grant.start)
    whole = (1 << len(ordered)) - 1
    seen: set[tuple[int, int]] = set()

    def search(done: int, free_from: int) -> bool:
        """Continue after the grants in `done`; the lock is free from `free_from` on."""
        if done == whole:
            return True
        if (done, free_from) in seen:
            return False
        seen.add((done, free_from))
        for place, grant in enumerate(ordered):
            if done >> place & 1:
                continue
            took = max(grant.asked, free_from)
            if took <= grant.start and search(done | 1 << place, grant.end):
                return True
        return False

    return search(0, 0)
