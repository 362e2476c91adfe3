"""A kind that watches its key while it waits."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, KEY, NAME, SECOND, Play

from redlatch import impl


@pytest.mark.parametrize("votes", ["nnn", "yyy"])
def test_an_acquire_ends_its_watch_before_another_thread_can_have_the_lock_object(votes: str) -> None:
    build = impl.load("python")
    play = Play(masters=3, build=build)
    seen: list[tuple[str, object]] = []

    class Shown(play.holds.Hold):  # type: ignore[misc,name-defined]
        def keep(self, elapsed_ns: int) -> None:
            seen.append(("keep", self.kind._look))
            super().keep(elapsed_ns)

        def free(self) -> None:
            seen.append(("free", self.kind._look))
            super().free()

    play.hold = Shown(NAME, KEY, build.module("quorum.kinds.fenced").Fenced([KEY, b"counter"]))
    tried = [0]

    def second(ballot: Any) -> str:
        tried[0] += 1
        if votes == "nnn":
            play.now = BEGINNING + SECOND
        assert play.hold.kind._look is not None
        return votes

    # A refused attempt, its last vote, and then the attempt that ends the acquire (with its last vote, if refused).
    play.acquire("nnn", "", second, *([""] if votes == "nnn" else []), give_up_ns=BEGINNING + SECOND)
    assert tried == [1]
    assert seen == [("keep" if votes == "yyy" else "free", None)]
