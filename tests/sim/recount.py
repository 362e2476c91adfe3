"""A second count of what a client counts: the results of its calls, as the tasks of a schedule see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from redlatch import LockStats, QuorumUnavailable

from .plan import Action
from .world import World

# A task learns of every loss of its lock from the release. It misses some if it is cancelled, does not wait, releases
# many at once, or leaves the report of a failed renewal to the log. If it enters an rlock again, a doubt may look like
# a loss.
TOLD, UNTOLD = "told", "untold"


def group_of(action: Action) -> str:
    """Return the group of the locks of an action."""
    hears = action.wait and action.cancel is None and action.kind not in ("multi", "many", "rlock")
    hears = hears and (action.watch or not action.renew)
    return f"{action.kind} {TOLD if hears else UNTOLD}"


class Recount:
    """The results of all calls of a schedule, by client and group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._counts: dict[tuple[int, str], Counter[str]] = {}
        # The locks whose losses were reported to their tasks, perhaps more than once.
        self._lost: dict[tuple[int, str], list[Any]] = {}

    def ended(self, client: int, action: Action, won: int, refused: int) -> None:
        """Count acquires that have ended without an error."""
        counts = self._of(client, action)
        counts["acquired"] += won
        counts["refused"] += refused

    def failed(self, client: int, action: Action, number: int, error: BaseException) -> None:
        """Count acquires that have ended with an error."""
        what = "unavailable" if isinstance(error, QuorumUnavailable) else "cancelled"
        self._of(client, action)[what] += number

    def lost(self, client: int, action: Action, lock: Any) -> None:
        """Note the report of a loss to a task."""
        lost = self._lost.setdefault((client, group_of(action)), [])
        if not any([lock is other for other in lost]):
            lost.append(lock)

    def _of(self, client: int, action: Action) -> Counter[str]:
        return self._counts.setdefault((client, group_of(action)), Counter())

    def judge(self, client: int, groups: dict[str, LockStats]) -> None:
        """Compare the figures of a client with this count."""
        for group, stats in groups.items():
            counts = self._counts.get((client, group), Counter())
            found = {
                "acquired": stats.acquired,
                "refused": stats.busy + stats.timed_out,
                "unavailable": stats.unavailable,
                "cancelled": stats.cancelled,
            }
            expected = {what: counts[what] for what in found}
            if group.endswith(f" {TOLD}"):
                found["lost"] = sum(stats.lost.values())
                expected["lost"] = len(self._lost.get((client, group), ()))
            if found != expected:
                self._world.violate(f"client {client} counts {found} for {group!r}, and its tasks {expected}")
            if stats.acquire_time.count != stats.acquired:
                self._world.violate(
                    f"client {client} has {stats.acquire_time.count} times of {stats.acquired} acquires"
                )
        missing = {group for number, group in self._counts if number == client} - set(groups)
        if missing:
            self._world.violate(f"client {client} counts nothing for {sorted(missing)}")
