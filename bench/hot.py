"""The scenarios in which all callers want one name: their entries, widths and times.

Owner changes count more than cycles: a caller that takes the lock ten times in a row has changed its owner once. The
p50 and the p99 are those of a hand-off, from the release of one owner to the acquire of the next. The slowest peers
change the owner five times a second. So all run for a fixed time, and not for a number of cycles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.rounds import Entry, Ratio, Scenario

COLUMNS = ("changes_per_s", "cycles_per_s", "fairness", "p50_us")
TASKS, THREADS, PROCESSES = 64, 8, 4
RIVALS = (2, 4, 8, 16, 32)

REDLOCK = Entry("redlock-py", "redlock-py")
REDIS_PY = Entry("redis-py Lock", "redis-py")
EAGER = Entry("redis-py Lock, sleep=1 ms", "redis-py-1ms")
LIST = Entry("python-redis-lock", "python-redis-lock")
POTTERY = Entry("pottery", "pottery")
ASYNC_REDIS_PY = Entry("redis.asyncio Lock", "redis-py-aio")
TURNS = Entry("redlatch asyncio, tenure=0", "redlatch-aio-tenure0-c")
TURNS_THREADS = Entry("redlatch, tenure=0", "redlatch-tenure0-c")
FAIR = Entry("redlatch asyncio, fair=True", "redlatch-aio-fair-c")
FAIR_THREADS = Entry("redlatch, fair=True", "redlatch-fair-c")


def hot_scenarios(masters: int) -> list[Scenario]:
    """Return the scenarios of one hot name, for a quorum of this number of masters and for one master."""
    counts = (masters, 1)
    return [
        *(tasks(count) for count in counts),
        *(threads(count) for count in counts),
        *(processes(count) for count in counts),
        *(relay(count) for count in counts),
        queue(masters),
        hold(masters),
        stopped(masters),
        split(),
    ]


def everybody(entries: tuple[Entry, ...], masters: int, **settings: Any) -> tuple[Entry, ...]:
    """Return the entries with the same settings, such as mode, width and number of processes, on these masters."""
    return tuple(replace(entry, masters="1" if masters == 1 else "all", **settings) for entry in entries)


def of_one_name(name: str, title: str, entries: tuple[Entry, ...], base: Entry, rounds: int = 3) -> Scenario:
    """Return a scenario that counts owner changes, with ratios to those of one peer."""
    ratios = (Ratio(f"changes / {base.contender}", "changes_per_s", base.label),)
    return Scenario(
        f"hot-{name}", title, entries, ratios, rounds=rounds, spare=0, seconds=0.25, columns=COLUMNS, ranges=True
    )


def tasks(masters: int) -> Scenario:
    """Return the scenario of many tasks of one process."""
    ours = (Entry("redlatch asyncio", "redlatch-aio-c"), Entry("redlatch uvloop", "redlatch-uvloop-c"))
    pure = Entry("redlatch asyncio, pure", "redlatch-aio-python")
    quorum = (Entry("pottery asyncio", "pottery-aio"), Entry("aioredlock", "aioredlock"))
    single = (ASYNC_REDIS_PY, Entry("redis.asyncio, sleep=1 ms", "redis-py-aio-1ms"))
    peers = single if masters == 1 else quorum
    entries = everybody((*ours, *peers) if masters == 1 else (*ours, pure, *peers), masters, mode="hot", width=TASKS)
    title = f"One hot name, {TASKS} tasks of one process, N={masters}"
    return of_one_name(f"tasks-n{masters}", title, entries, peers[0])


def threads(masters: int) -> Scenario:
    """Return the scenario of a few threads of one process."""
    ours, pure = Entry("redlatch", "redlatch-c"), Entry("redlatch pure", "redlatch-python")
    peers = (REDIS_PY, EAGER, LIST) if masters == 1 else (REDLOCK, POTTERY)
    entries = everybody((ours, *peers) if masters == 1 else (ours, pure, *peers), masters, mode="hot", width=THREADS)
    title = f"One hot name, {THREADS} threads of one process, N={masters}"
    return of_one_name(f"threads-n{masters}", title, entries, peers[0])


def processes(masters: int) -> Scenario:
    """Return the scenario of a few processes with one caller each; each release goes to the masters."""
    peers = (REDIS_PY, EAGER, LIST) if masters == 1 else (REDLOCK,)
    entries = everybody((FAIR, FAIR_THREADS, TURNS, TURNS_THREADS, *peers), masters, mode="hot", processes=PROCESSES)
    title = f"One hot name, {PROCESSES} processes of one caller, N={masters}"
    return of_one_name(f"processes-n{masters}", title, entries, peers[0], rounds=4)


def relay(masters: int) -> Scenario:
    """Return the scenario of two processes of which one waits while the other holds, compared with a single caller.

    While the owner keeps the lock for 2 ms, all processes sleep, and each message then has to wake a core. So the
    scenario also has a cycle that begins after such a rest.
    """
    # The other peers also poll at a fixed interval, so one peer stands for all.
    peers = (LIST,) if masters == 1 else (REDLOCK,)
    ours = (Entry("redlatch asyncio", "redlatch-aio-c"), Entry("redlatch", "redlatch-c"))
    entries = everybody(
        tuple(
            replace(entry, label=f"{entry.label}, {what}", mode=mode)
            for entry in (*ours, *peers)
            for what, mode in (("cycle", "cycle"), ("rested cycle", "rested"), ("hand-off", "relay"))
            if entry in ours or mode != "rested"
        ),
        masters,
        processes=2,
    )
    return Scenario(
        f"hot-relay-n{masters}",
        f"From a release to the acquire of a waiter in another process, N={masters}",
        entries,
        (Ratio("p50 / cycle", "p50_us", "{who}, cycle"), Ratio("p50 / rested", "p50_us", "{who}, rested cycle")),
        rounds=3,
        spare=0,
        seconds=0.3,
        columns=("p50_us", "p99_us"),
        ranges=True,
    )


def queue(masters: int) -> Scenario:
    """Return the scenario of the masters' load with more waiters: equal, because only one waiter of a process asks."""
    entries = tuple(
        replace(entry, label=f"N={count}, {width} tasks in each", width=width)
        for count in (masters, 1)
        for width in (10, 1000)
        for entry in everybody((TURNS,), count, mode="hot", processes=PROCESSES)
    )
    return Scenario(
        "hot-queue",
        f"Commands for one owner change at all masters, {PROCESSES} processes, redlatch asyncio, tenure=0",
        entries,
        (Ratio("commands / 10 tasks", "commands", "{who}, 10 tasks in each"),),
        rounds=3,
        spare=0,
        seconds=0.3,
        columns=("commands", "changes_per_s", "fairness"),
        ranges=True,
    )


def hold(masters: int) -> Scenario:
    """Return the scenario of owners that keep the lock for a millisecond; it measures the share of time it is held."""
    entries = tuple(
        replace(entry, label=f"{entry.label}, N={count}")
        for count, which in (
            (masters, (Entry("redlatch asyncio", "redlatch-aio-c"), Entry("pottery asyncio", "pottery-aio"))),
            (1, (Entry("redlatch asyncio", "redlatch-aio-c"), ASYNC_REDIS_PY)),
        )
        for entry in everybody(which, count, mode="hold", width=TASKS)
    )
    base = f"{ASYNC_REDIS_PY.label}, N=1"
    return Scenario(
        "hot-hold",
        f"One hot name kept for 1 ms, {TASKS} tasks of one process",
        entries,
        (Ratio(f"held / {ASYNC_REDIS_PY.label}", "held_share", base),),
        rounds=3,
        spare=0,
        seconds=0.25,
        columns=("held_share", "changes_per_s", "fairness"),
        ranges=True,
    )


def stopped(masters: int) -> Scenario:
    """Return the scenario of processes that want one name while a minority of the masters is stopped (SIGSTOP)."""
    lists: list[tuple[int, tuple[tuple[str, str], ...]]] = [
        (3, (("healthy", "three"), ("one stopped", "stopped-1-of-3")))
    ]
    if masters > 3:
        lists.append((masters, (("healthy", "all"), ("one stopped", "stopped-1"), ("two stopped", "stopped-2"))))
    entries = tuple(
        replace(entry, label=f"{face} N={count}, {what}", masters=urls, mode="hot", processes=PROCESSES)
        for face, entry in (("asyncio", TURNS), ("threads", TURNS_THREADS))
        for count, states in lists
        for what, urls in states
    )
    return Scenario(
        "hot-stopped",
        f"One hot name, {PROCESSES} processes of one caller, tenure=0, beside stopped masters",
        entries,
        (Ratio("cycles / healthy", "cycles_per_s", "{who}, healthy"),),
        ground="sickbed",
        rounds=5,
        seconds=0.5,
        columns=("cycles_per_s", "changes_per_s", "fairness", "p99_us"),
        ranges=True,
    )


def split() -> Scenario:
    """Return the scenario of rivals that start at one moment, in a simulation: see `split`."""
    ways: tuple[tuple[str, str, tuple[int, ...]], ...] = (
        ("redlatch", "split-redlatch", RIVALS),
        ("plain jitter", "split-jitter", RIVALS),
        ("redlatch, no master first", "split-unordered", RIVALS[-1:]),
    )
    entries = tuple(
        Entry(f"{label}, {width} rivals", contender, "split", width)
        for label, contender, widths in ways
        for width in widths
    )
    base = "plain jitter, {width} rivals"
    return Scenario(
        "hot-split",
        "Rounds and time to a winner, of rivals that start at one moment, simulated, N=5",
        entries,
        (Ratio("p50 / jitter", "p50_us", base), Ratio("p99 / jitter", "p99_us", base)),
        rounds=3,
        spare=0,
        amount=30,
        columns=("split_share", "attempts_p50", "attempts_p99", "p50_us", "p99_us"),
    )
