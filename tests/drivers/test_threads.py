"""The driver for threads: how it performs the effects of a generator, and how it ends one that is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.effects import EffectRig
from support.faces import PATIENCE, ask, await_true, in_thread

from redlatch import Client, impl
from redlatch.errors import ClientClosed
from redlatch.masters.listed import masters_of
from redlatch.wire.dial.connect import dial

FOR_EVER = 1 << 62


class Rig(EffectRig):
    """The rig with effects for a generator."""

    def __init__(self, build: impl.Implementation, url: str) -> None:
        super().__init__(build, Client(url))
        self.closed = threading.Event()

    def steps(self, *effects: Any) -> Iterator[Any]:
        """Yield effects, and those of generators; set `closed` at the end, however it comes."""
        try:
            for effect in effects:
                if isinstance(effect, Iterator):
                    yield from effect
                else:
                    yield effect
        finally:
            self.closed.set()


@pytest.fixture
def rig(implementation: impl.Implementation, url: str) -> Iterator[Rig]:
    rig = Rig(implementation, url)
    yield rig
    rig.client.close()


def test_the_first_run_connects_and_returns_the_answer(rig: Rig) -> None:
    assert rig.driver.status.state == "not connected"
    assert rig.driver.run(rig.steps(rig.effects.Answer(True))) is True
    assert rig.driver.run(rig.steps(rig.effects.Answer(False))) is False
    assert rig.driver.status.state == "1 of 1 connected"


def test_a_generator_goes_on_when_its_ballots_are_decided(rig: Rig, name: str) -> None:
    seen = []

    def steps() -> Iterator[Any]:
        first, second, third = (rig.ballot(f"{name}-{number}") for number in range(3))
        yield first
        seen.append(first.yes)
        yield rig.effects.Send([second, third])
        yield [second, third]
        seen.extend([second.yes, third.yes])

    assert rig.driver.run(steps()) is None
    assert seen == [1, 1, 1]


def test_the_end_of_a_pause_or_of_a_wait_in_a_queue_lets_the_generator_go_on(rig: Rig) -> None:
    hold = rig.client.lock("x")._hold
    rig.driver.run(rig.steps(rig.effects.Pause(rig.clock.now() + 1000), rig.new_entry(hold, rig.clock.now() + 1000)))
    assert rig.closed.is_set()


@pytest.mark.parametrize("what", ["pause", "queue"])
def test_closing_the_client_ends_a_wait_and_the_generator(rig: Rig, name: str, what: str) -> None:
    assert rig.client.lock(name).acquire()
    behind = rig.client.lock(name)._hold
    waiting = threading.Event()

    def steps() -> Iterator[Any]:
        effects = (
            rig.client._quorum.acquire(behind, 1000, None, object())
            if what == "queue"
            else [rig.effects.Pause(FOR_EVER)]
        )
        for effect in effects:
            waiting.set()
            yield effect
        yield rig.effects.Answer(True)

    call = in_thread(rig.driver.run, rig.steps(steps()))
    assert waiting.wait(PATIENCE)
    rig.client.close()
    with pytest.raises(ClientClosed):
        call.result(PATIENCE)
    assert rig.closed.is_set()


def test_an_error_of_the_generator_is_raised_and_the_next_call_finds_no_leader(rig: Rig, name: str) -> None:
    def steps() -> Iterator[Any]:
        yield rig.ballot(name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rig.driver.run(steps())
    assert in_thread(rig.client.lock(f"{name}-2").acquire, False).result(PATIENCE)


def test_an_interrupted_wait_closes_the_generator_before_the_error_is_raised(
    rig: Rig, strike: Callable[[float], None]
) -> None:
    rig.client.connect()
    # The reference keeps the generator from being closed by the garbage collector.
    steps = rig.steps(rig.new_entry(rig.client.lock("x")._hold, FOR_EVER))
    with pytest.raises(KeyboardInterrupt):
        strike(0.02)
        rig.driver.run(steps)
    assert rig.closed.is_set()


def test_releases_are_sent_although_the_client_is_closing(monkeypatch: pytest.MonkeyPatch, url: str, name: str) -> None:
    # The compiled driver hides its connections.
    monkeypatch.setattr(impl, "current", impl.load("python"))
    rig = Rig(impl.current, url)
    ask(url).set(name, "token", px=60_000)

    def steps() -> Iterator[Any]:
        yield rig.effects.Pause(rig.clock.now())
        rig.driver._connections.retire()
        release = rig.commands.Release(name.encode(), b"token", rig.clock.now())
        yield rig.effects.Send([rig.client._quorum.ballot(release)])
        yield rig.effects.Answer(True)

    with pytest.raises(ClientClosed):
        rig.driver.run(steps())
    await_true(lambda: not ask(url).exists(name))
    rig.client.close()


def test_commands_before_the_first_connection_are_not_sent(rig: Rig, name: str) -> None:
    rig.driver.send([rig.commands.Release(name.encode(), b"token", rig.clock.now())])
    assert rig.driver.status.state == "not connected"


def test_a_connection_that_arrives_after_the_end_is_closed(rig: Rig, url: str) -> None:
    rig.client.connect()
    rig.client.close()
    connection = dial(masters_of(url)[0], PATIENCE)
    rig.driver.deliver(0, connection)
    assert connection.sock.fileno() == -1


def test_a_driver_with_nothing_to_attend_to_is_asked_again_within_a_bounded_time(rig: Rig) -> None:
    rig.client.connect()
    assert 0 < rig.driver.attend() < 3600
    rig.client.close()
    assert rig.driver.attend() is None
