"""A search for an order of acquires and releases that explains a history (Wing and Gong 1993; states are remembered).

For a mutex: an acquire takes effect at one moment between when it was asked for and when it was granted, and only while
nobody has the lock; its end takes effect from the end of the holder's certainty on. Exponential at worst: for samples.
"""

from __future__ import annotations

from sim.grants import Grant


def explainable(grants: list[Grant]) -> bool:
    """Tell whether there is an order in which each holder had the lock alone, for as long as it was certain of it."""
    ordered = sorted(grants, key=lambda grant: grant.start)
    whole = (1 << len(ordered)) - 1
    seen: set[tuple[int, int]] = set()

    def search(done: int, free_from: int) -> bool:
        """Go on behind those that are done; the lock is free from then on."""
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
