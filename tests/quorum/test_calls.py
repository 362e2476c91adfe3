"""The calls that no other test of this room makes; `test_recovery` has those that end early."""

from __future__ import annotations

from support.scripted_votes import KEY, NAME, TTL_MS, Play

from redlatch import impl
from redlatch.errors import LockError, LockLost


def test_extending_all_gives_each_hold_its_own_error(implementation: impl.Implementation) -> None:
    play = Play(build=implementation)
    assert play.acquire("yyy")
    kept = play.hold
    play.hold = play.holds.Hold(NAME, KEY + b"2", play.plain)
    assert play.acquire("yyy")
    errors: dict[int, LockError] = {}
    wanted = [(kept, TTL_MS, kept.token), (play.hold, TTL_MS, play.hold.token)]
    play.run(play.quorum.extend_all(wanted, errors), "nnn", "yyy")
    assert list(errors) == [0] and isinstance(errors[0], LockLost)
    assert play.hold.held(play.now)
