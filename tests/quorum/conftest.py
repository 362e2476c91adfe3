"""Fixtures: one holder with scripted votes, and the holds and queues of one client."""

from __future__ import annotations

import pytest
from support.client_queues import World
from support.scripted_votes import Play

from redlatch import impl


@pytest.fixture
def play(implementation: impl.Implementation) -> Play:
    return Play(build=implementation)


@pytest.fixture
def held(play: Play) -> Play:
    """A play whose holder has its lock since BEGINNING, without the effects so far."""
    assert play.acquire("yyy")
    play.effects.clear()
    return play


@pytest.fixture
def world(implementation: impl.Implementation) -> World:
    return World(implementation)
