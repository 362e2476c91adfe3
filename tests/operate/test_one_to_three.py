"""The page "From one Redis to three": each of its steps, and the way back from each, on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from support.faces import ask

import redlatch
from redlatch import Client
from redlatch.cli import build
from redlatch.testing import Masters

PAGE = Path(__file__).parents[2] / "docs/from-one-to-three.md"
TTL = 0.3


class Program:
    """A program that adds to a counter under the lock "report", again and again, with some client.

    Attributes:
        runs: how often it had the lock.
    """

    # All programs change one counter, which no lock but theirs protects.
    counter = 0
    lost = 0

    def __init__(self, use: Callable[[Program], None]) -> None:
        self.runs = 0
        self._over = threading.Event()
        self._use = use
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._use(self)
            # Let the others have it.
            self._over.wait(0.005)

    def work(self) -> None:
        before = Program.counter
        self._over.wait(0.002)
        Program.lost += Program.counter != before
        Program.counter = before + 1
        self.runs += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def of_redis_py(url: str) -> Iterator[Callable[[Program], None]]:
    with redis.Redis.from_url(url) as server:

        def use(program: Program) -> None:
            with server.lock("report", timeout=TTL, sleep=0.005):
                program.work()

        yield use


def of(client: Client) -> Callable[[Program], None]:
    def use(program: Program) -> None:
        try:
            with client.lock("report", ttl=TTL, timeout=1.0):
                program.work()
        except (redlatch.QuorumUnavailable, redlatch.LockTimeout):
            # During the handover.
            pass

    return use


@contextmanager
def running(*uses: Callable[[Program], None]) -> Iterator[list[Program]]:
    programs = [Program(use) for use in uses]
    try:
        yield programs
    finally:
        for program in programs:
            program.stop()


def all_go_on(programs: list[Program]) -> bool:
    """Wait until each program has had the lock three times more."""
    goals = [program.runs + 3 for program in programs]
    for _ in range(2000):
        if all(program.runs >= goal for program, goal in zip(programs, goals, strict=True)):
            return True
        threading.Event().wait(0.005)
    return False


def move(old: list[str], new: list[str]) -> str:
    lists = [word for url in old for word in ("--from", url)] + [word for url in new for word in ("--to", url)]
    result = CliRunner().invoke(build(), ["masters", "move", *lists])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def servers(fleet: Callable[..., Masters]) -> tuple[str, list[str]]:
    Program.counter = Program.lost = 0
    one, *three = fleet(4).urls
    return one, three


def test_row_66_the_steps_of_the_page_and_the_way_back_from_each(servers: tuple[str, list[str]]) -> None:
    one, three = servers
    with Client(one, ttl=TTL) as first, Client(one, next=three, ttl=TTL) as both:
        # Step 1: old and new code side by side, and the way back.
        with of_redis_py(one) as old:
            with running(old, of(first)) as programs:
                assert all_go_on(programs)
            with running(old) as programs:
                assert all_go_on(programs)
        # Step 2: some have both lists, and some only the old one.
        with running(of(first), of(both)) as programs:
            assert all_go_on(programs)
        # Step 3: the handover, under load.
        with running(of(both), of(both)) as programs:
            move([one], three)
            assert all_go_on(programs)
    # Step 4.
    with Client(three, ttl=TTL) as last, running(of(last), of(last)) as programs:
        assert all_go_on(programs)
    # The way back, with clients that have only the old list since before.
    with Client(one, ttl=TTL) as first, Client(three, next=one, ttl=TTL) as back:
        with running(of(back), of(back)) as programs:
            move(three, [one])
            assert all_go_on(programs)
            with running(of(first)) as more:
                assert all_go_on(more)
    assert Program.counter > 20
    assert Program.lost == 0


def test_row_66_a_program_with_redis_py_is_found_before_two_could_hold_the_lock(servers: tuple[str, list[str]]) -> None:
    one, three = servers
    with Client(one, next=three, ttl=TTL) as both, both.lock("report"):
        pass
    lists = [word for url in three for word in ("--to", url)]
    with ask(one) as server, server.lock("report", timeout=300) as held:
        result = CliRunner().invoke(build(), ["masters", "move", "--from", one, *lists])
        assert (result.exit_code, "'report' on" in result.output) == (1, True)
        with Client(one, next=three, ttl=TTL) as both:
            assert not both.lock("report").acquire(blocking=False)
        assert held.owned()


def test_the_page_names_this_test_and_its_commands_have_the_options_of_the_command_line() -> None:
    text = PAGE.read_text()
    assert "tests/operate/test_one_to_three.py" in text
    usage = CliRunner().invoke(build(), ["masters", "move", "--help"]).output
    for option in ("--from", "--to", "--dry-run", "--ignore"):
        assert option in text and option in usage
