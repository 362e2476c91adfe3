"""Handovers on real servers (M1 to M5): clients move while they lock; movers stop anywhere, and go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.faces import Face, ask, await_true, refused
from support.selection import ALL, on_one_face

from redlatch import Client, ConfigurationError, LockLost, QuorumUnavailable
from redlatch.cli import build
from redlatch.guard.marker import FINAL, LEFT, MARKER, Marker
from redlatch.masters.listed import masters_of
from redlatch.operate.markers import CannotMove, Markers
from redlatch.operate.mover import Mover
from redlatch.testing import embedded

PROCESSES = 8
TTL = 0.2


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[embedded.Masters, list[str]]]:
    masters = embedded.masters(8)
    with masters as urls:
        yield masters, list(urls)


@pytest.fixture
def urls(fleet: tuple[embedded.Masters, list[str]]) -> list[str]:
    for url in fleet[1]:
        ask(url).flushall()
    return fleet[1]


def marker_of(url: str) -> Marker | None:
    return Marker.read(ask(url).get(MARKER))


def stages(urls: list[str]) -> list[str]:
    return [marker.stage if marker is not None else "" for marker in map(marker_of, urls)]


def mover(old: list[str], new: list[str], said: list[str] | None = None, **given: Any) -> Mover:
    lines: list[str] = [] if said is None else said
    return Mover(masters_of(old), masters_of(new), Markers(MARKER), say=lines.append, **given)


def goes_on(client: Any) -> bool:
    """Return whether a client can take a lock."""
    lock = client.lock("stock")
    try:
        if not lock.acquire(blocking=False):
            return False
        lock.release()
    except (ConfigurationError, QuorumUnavailable):
        return False
    return True


def use(urls: list[str], ttl: float = TTL) -> None:
    """Have a client found the masters."""
    with Client(urls, ttl=ttl) as client, client.lock("stock"):
        pass


# --- clients that lock meanwhile ------------------------------------------------------------------------

LISTS: dict[str, tuple[slice, slice]] = {
    "3 to 5 others": (slice(0, 3), slice(3, 8)),
    "5 to 3 others": (slice(0, 5), slice(5, 8)),
    "3 to 5 with the same 3": (slice(0, 3), slice(0, 5)),
    "5 to 3 of them": (slice(0, 5), slice(1, 4)),
    "1 to 3 with the same": (slice(0, 1), slice(0, 3)),
}


@pytest.mark.slow("processes under load during a handover")
@pytest.mark.parametrize("lists", LISTS)
def test_processes_lock_and_unlock_through_a_handover(urls: list[str], lists: str) -> None:
    old, new = (urls[part] for part in LISTS[lists])
    command = [sys.executable, "-m", "operate.crew", "stock", *old, "--", *new]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    with ExitStack() as stack:
        crew = [
            stack.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment))
            for _ in range(PROCESSES)
        ]
        for process in crew:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        mover(old, new).run()
        results = []
        for process in crew:
            printed, _ = process.communicate(timeout=30)
            results.append(json.loads(printed))
    held = sorted(tuple(times) for result in results for times in result["held"])
    overlaps = [(one, two) for one, two in pairwise(held) if two[0] < one[1]]
    assert overlaps == []
    assert stages(new) == [FINAL] * len(new)
    longest = max(result["longest"] for result in results)
    print(f"\n{lists}: {len(held)} locks, the longest wait took {longest:.2f} s")
    for result in results:
        assert result["errors"] == []
        assert len(new) == result["masters"].count("127.0.0.1:")


def test_a_client_of_new_masters_waits_for_the_end_and_one_of_the_old_list_is_told_what_to_do(urls: list[str]) -> None:
    old, new = urls[:3], urls[3:6]
    use(old)
    said: list[str] = []
    refusals: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("left"):
            for masters in (old, new):
                with Client(masters, ttl=TTL) as client, pytest.raises(QuorumUnavailable) as caught:
                    client.lock("stock").acquire(blocking=False)
                refusals.append(str(caught.value))

    Mover(masters_of(old), masters_of(new), Markers(MARKER), say=say).run()
    assert "was left for" in refusals[0]
    assert "waits for the handover from" in refusals[1]
    with Client(new, ttl=TTL) as client, client.lock("stock"):
        pass


@pytest.mark.parametrize("lost", [False, True], ids=["released before", "released after"])
def test_a_holder_keeps_its_lock_until_its_deadline(urls: list[str], lost: bool) -> None:
    old, new = urls[:3], urls[3:6]
    use(old, ttl=2.0)
    with Client(old, next=new, ttl=2.0) as client:
        lock = client.lock("stock")
        lock.acquire()

        def say(line: str) -> None:
            if line.startswith("left"):
                # A call in the next second sends a pulse, and so finds that the masters were left.
                with pytest.raises(QuorumUnavailable):
                    for number in count():
                        client.lock(f"other {number}").acquire(blocking=False)
                while not lock.remaining():  # until the marker of each master was read again
                    client.health()
                assert lock.remaining() > 0
                if not lost:
                    lock.release()

        Mover(masters_of(old), masters_of(new), Markers(MARKER), say=say).run()
        if lost:
            with pytest.raises(LockLost):
                lock.release()
        with client.lock("stock"):
            assert client.health().available


def test_a_client_that_was_idle_meanwhile_has_the_next_lock_at_once(urls: list[str]) -> None:
    """Found by an attack: its first calls raised QuorumUnavailable."""
    old, new = urls[:3], urls[3:6]
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(old, next=new, ttl=TTL)) for _ in range(20)]
        for client in clients:
            with client.lock("stock"):
                pass
        mover(old, new).run()
        for number, client in enumerate(clients):
            assert client.lock(f"stock {number}").acquire(timeout=5.0)


def test_a_client_that_starts_when_the_old_masters_are_off_uses_the_new_ones(
    fleet: tuple[embedded.Masters, list[str]], urls: list[str]
) -> None:
    old, new = urls[:3], urls[3:6]
    use(old)
    mover(old, new).run()
    for index in range(3):
        fleet[0].stop(index)
    try:
        with Client(old, next=new, ttl=TTL) as client:
            assert client.lock("stock").acquire(timeout=5.0)
    finally:
        for index in range(3):
            fleet[0].start(index)


def test_a_multi_lock_waits_for_the_end_of_a_handover(urls: list[str]) -> None:
    old, new = urls[:3], urls[3:6]
    use(old)
    won: list[bool] = []
    with Client(old, next=new, ttl=TTL) as client:
        both = client.multi_lock(["stock", "till"])
        waiter = threading.Thread(target=lambda: won.append(both.acquire(timeout=10.0)))

        def say(line: str) -> None:
            if line.startswith("left"):
                waiter.start()

        Mover(masters_of(old), masters_of(new), Markers(MARKER), say=say).run()
        waiter.join()
    assert won == [True]


# --- movers that stop -----------------------------------------------------------------------------------


class Struck(Exception):
    """The end of a mover."""


class Mortal(Markers):
    """The markers of a mover that ends before one of its handshakes."""

    left = 0

    def _shake(self, *args: Any) -> Any:
        if self.left == 0:
            raise Struck
        self.left -= 1
        return super()._shake(*args)


@pytest.mark.parametrize("new", [slice(3, 6), slice(1, 4)], ids=["others", "two of them"])
def test_a_mover_that_stopped_anywhere_is_finished_by_the_next_one(urls: list[str], new: slice) -> None:
    # With three masters each third step begins another one for all of them; both lists together stop at each.
    steps, lines = (0 if ALL or new == slice(3, 6) else 3), list[str]()
    while True:
        key = b"%d" % steps + MARKER
        with Client(urls[:3], ttl=TTL, prefix=str(steps)) as client, client.lock("stock"):
            pass
        mortal = Mortal(key)
        mortal.left = steps
        first = Mover(masters_of(urls[:3]), masters_of(urls[new]), mortal, say=lines.append)
        try:
            first.run()
            break
        except Struck:
            pass
        Mover(masters_of(urls[:3]), masters_of(urls[new]), Markers(key), say=lines.append).run()
        with Client(urls[new], ttl=TTL, prefix=str(steps)) as client, client.lock("stock"):
            assert client.health().ready
        steps += 3 if ALL else 6
    assert steps > 10


def test_two_movers_at_once_end_together(urls: list[str]) -> None:
    use(urls[:3])
    errors: list[BaseException] = []

    def run() -> None:
        try:
            mover(urls[:3], urls[3:6]).run()
        except CannotMove as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mover(urls[:3], urls[3:6]).run()
    assert stages(urls[:6]) == [LEFT] * 3 + [FINAL] * 3


def test_a_master_that_forgets_that_it_was_left_makes_the_mover_begin_again(urls: list[str]) -> None:
    use(urls[:3])
    said: list[str] = []
    forgetful = redis.Redis.from_url(urls[0])

    def sleep(seconds: float) -> None:
        # The first time, a master is flushed while the mover waits.
        if said[-1].startswith("left") and len([line for line in said if line.startswith("left")]) == 1:
            forgetful.flushall()
        threading.Event().wait(seconds)

    mover(urls[:3], urls[3:6], said, sleep=sleep).run()
    assert [line.split(":")[0] for line in said] == [
        "pending",
        "left",
        "a master has forgotten that it was left; beginning again",
        "left",
        "final",
    ]
    assert stages(urls[:6]) == [LEFT] * 3 + [FINAL] * 3


def test_a_handover_goes_back_by_another_one(urls: list[str]) -> None:
    use(urls[:3])
    mover(urls[:3], urls[3:6]).run()
    with Client(urls[:3], ttl=TTL) as client:
        with pytest.raises(QuorumUnavailable, match="was left for"):
            client.lock("stock").acquire(blocking=False)
    use(urls[3:6])
    mover(urls[3:6], urls[:3]).run()
    use(urls[:3])


@on_one_face("asyncio")
@pytest.mark.parametrize("new", [slice(2, 5), slice(0, 5)], ids=["one of the old", "all of the old"])
def test_row_64_a_client_of_the_new_list_that_was_refused_before_works_soon_after_the_end(
    connect: Face, urls: list[str], new: slice
) -> None:
    use(urls[:3])
    early = connect(urls[new], ttl=TTL)
    assert refused(early, "all clients must have the same list")
    mover(urls[:3], urls[new]).run()
    await_true(lambda: goes_on(early), 5.0)


@on_one_face("threads")
@pytest.mark.parametrize("new", [slice(2, 5), slice(3, 6)], ids=["one of the old", "others"])
def test_row_64_clients_that_were_left_go_on_when_a_handover_comes_back(
    connect: Face, urls: list[str], new: slice
) -> None:
    first, second = connect(urls[:3], ttl=TTL), connect(urls[new], ttl=TTL)
    assert goes_on(first)
    for before, after, old, now in ((first, second, urls[:3], urls[new]), (second, first, urls[new], urls[:3])):
        mover(old, now).run()
        await_true(partial(goes_on, after), 5.0)
        assert not goes_on(before)


def test_each_handover_has_a_number_of_its_own(urls: list[str]) -> None:
    """Found by an attack: a client that knew final markers with the same number let a new master vote too early."""
    lists = urls[:3], urls[3:6]
    use(lists[0])
    numbers = []
    for turn in range(4):
        old, new = lists[turn % 2], lists[1 - turn % 2]
        mover(old, new).run()
        use(new)
        marker = marker_of(new[0])
        assert marker is not None
        numbers.append(marker.attempt)
    assert numbers == sorted(set(numbers))


def test_markers_of_a_handover_that_was_given_up_do_not_count(urls: list[str]) -> None:
    """Found by an attack: the new masters were final for the wrong old ones, whose clients did not go over."""
    first, second = urls[:3], urls[3:6]
    use(first)

    def give_up(line: str) -> None:
        if line.startswith("pending"):
            raise Struck

    with pytest.raises(Struck):
        Mover(masters_of(first), masters_of(urls[6:8]), Markers(MARKER), say=give_up).run()
    mover(first, second).run()
    with Client(second, next=urls[6:8], ttl=TTL) as client:
        with client.lock("stock"):
            pass
        mover(second, urls[6:8]).run()
        with client.lock("stock"):
            assert "127.0.0.1" in repr(client)
    marker = marker_of(urls[6])
    assert marker is not None
    assert (marker.stage, len(marker.previous)) == (FINAL, len(second))


def test_a_new_master_that_forgot_while_a_second_mover_was_late_does_not_vote_at_once(urls: list[str]) -> None:
    """Found by an attack: the late mover made it final as if it had forgotten nothing, and a lock had two holders."""
    use(urls[:3])

    def say(line: str) -> None:
        if line.startswith("left"):
            mover(urls[:3], urls[3:6]).run()
            use(urls[3:6])
            redis.Redis.from_url(urls[3]).flushall()

    Mover(masters_of(urls[:3]), masters_of(urls[3:6]), Markers(MARKER), say=say).run()
    marker = marker_of(urls[3])
    assert marker is not None
    assert (marker.stage, marker.sure) == (FINAL, False)
    assert marker.out == marker.longest


@pytest.mark.parametrize("dead", [1, 2])
def test_new_masters_that_die_before_the_end_do_not_hold_up_a_quorum(
    fleet: tuple[embedded.Masters, list[str]], urls: list[str], dead: int
) -> None:
    """Found by an attack: no handover could go on, and neither list had locks."""
    masters, _ = fleet
    use(urls[:3])
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("left"):
            for index in range(3, 3 + dead):
                masters.stop(index)

    try:
        late = Mover(masters_of(urls[:3]), masters_of(urls[3:6]), Markers(MARKER), say=say)
        if dead == 1:
            late.run()
            use(urls[3:6])
        else:
            with pytest.raises(CannotMove, match="only 1 of 3 new masters are final"):
                late.run()
    finally:
        for index in range(3, 3 + dead):
            masters.start(index)
    mover(urls[:3], urls[3:6], said).run()
    assert stages(urls[3:6]) == [FINAL] * 3


# --- what a mover refuses, and its command --------------------------------------------------------------


def test_a_master_that_is_gone_must_be_named(fleet: tuple[embedded.Masters, list[str]], urls: list[str]) -> None:
    masters, _ = fleet
    use(urls[:3])
    host = urls[2].removeprefix("redis://")
    masters.stop(2)
    try:
        with pytest.raises(CannotMove, match="cannot be used"):
            mover(urls[:3], urls[3:6]).run()
        assert stages(urls[3:6]) == [""] * 3
        mover(urls[:3], urls[3:6], gone=frozenset({host})).run()
        use(urls[3:6])
    finally:
        masters.start(2)


def use_nothing(urls: list[str]) -> None:
    pass


def use_both(urls: list[str]) -> None:
    use(urls[:3])
    use(urls[3:6])


def use_two(urls: list[str]) -> None:
    use(urls[:2])


def move_elsewhere(urls: list[str]) -> None:
    use(urls[:3])
    mover(urls[:3], urls[6:8]).run()


REFUSALS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "nobody used the old masters": (use_nothing, "no client uses that list"),
    "the new ones are in use": (use_both, "is one of 127.0.0.1"),
    "another old list": (use_two, "is one of 127.0.0.1"),
    "left for others": (move_elsewhere, "was left for"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_handover_that_contradicts_the_markers_is_refused_and_writes_nothing(urls: list[str], case: str) -> None:
    prepare, words = REFUSALS[case]
    prepare(urls)
    before = stages(urls)
    with pytest.raises(CannotMove, match=words):
        mover(urls[:3], urls[3:6]).run()
    assert stages(urls) == before


def test_a_handover_to_the_same_masters_is_refused(urls: list[str]) -> None:
    """It left them for ever, and refused all their clients."""
    use(urls[:3])
    before = stages(urls)
    with pytest.raises(CannotMove, match="the same masters"):
        mover(urls[:3], urls[2::-1]).run()
    assert stages(urls) == before
    use(urls[:3])


def test_a_server_with_two_names_is_refused(urls: list[str]) -> None:
    use(urls[:3])
    with pytest.raises(CannotMove, match="the same server"):
        mover(urls[:3], [urls[0].replace("127.0.0.1", "localhost"), urls[3]]).run()


def test_the_wait_is_that_of_the_longest_ttl_in_use(urls: list[str]) -> None:
    use(urls[:3], ttl=7.0)
    said: list[str] = []
    mover(urls[:3], urls[3:6], said).run(dry=True)
    assert said == ["it would take about 8 s, in which nobody gets a lock"]
    assert stages(urls[3:6]) == [""] * 3


def test_the_command_moves_shows_and_explains(urls: list[str]) -> None:
    use(urls[:3])
    lists = [part for url in urls[:3] for part in ("--from", url)] + [
        part for url in urls[3:6] for part in ("--to", url)
    ]
    run = CliRunner().invoke
    moved = run(build(), ["masters", "move", *lists])
    assert (moved.exit_code, moved.output.splitlines()[-1].split(":")[0]) == (0, "final")
    shown = run(build(), ["masters", *urls[3:6]])
    assert shown.exit_code == 0
    refused = run(build(), ["masters", "move", *lists, "--gone", "x:1"])
    assert refused.exit_code == 2
    assert "x:1 is not one of --from" in refused.output
    groups = [f"redis+sentinel://127.0.0.1:{port}/g" for port in (1, 2)]
    namesakes = run(build(), ["masters", "move", "--from", groups[0], "--to", groups[1]])
    assert namesakes.exit_code == 2
    assert "--to: sentinel:g is in both lists" in namesakes.output
    for old, new in ((urls[0], "redis+cluster://a"), ("redis+cluster://a", urls[0])):
        cluster = run(build(), ["masters", "move", "--from", old, "--to", new])
        assert cluster.exit_code == 2
        assert "--from, --to: there is no handover from or to a cluster so far" in cluster.output
    wrong = run(build(), ["masters", "move", "--from", urls[6], "--to", urls[7]])
    assert wrong.exit_code == 1
    assert "no client uses that list" in wrong.output
