"""The scenarios: the entries of each, their widths, times and ratios.

The times are chosen so that the whole race takes seven minutes. Figures that the documentation quotes get more rounds
than figures that are only drawn.
"""

from __future__ import annotations

from dataclasses import replace

from bench.drop_ins import drop_in_scenarios
from bench.hot import hot_scenarios
from bench.process import FLOOR as FLOOR_PROGRAM
from bench.rounds import Entry, Ratio, Scenario

FLOOR = Entry("floor (C)", FLOOR_PROGRAM)
REDLATCH = Entry("redlatch compiled", "redlatch-c")
NOWAIT = Entry("  release(wait=False)", "redlatch-nowait-c")
PURE = Entry("redlatch pure", "redlatch-python")
REDLOCK = Entry("redlock-py", "redlock-py")
LIMIT = Entry("C limit, 1024 deep", FLOOR_PROGRAM, "pipeline", 1024)

CALLERS = (1, 8, 64, 512, 4096)

# The numbers of masters in the plot of latencies.
MASTERS = (1, 3, 5, 9)

LATENCY = (Ratio("p50 / floor", "p50_us", FLOOR.label), Ratio("p99 / floor", "p99_us", FLOOR.label))
AGAINST_LIMIT = Ratio("rate / C limit", "cycles_per_s", LIMIT.label)


def on(masters: str, *entries: Entry) -> tuple[Entry, ...]:
    """Return the entries on another list of masters."""
    return tuple(replace(entry, masters=masters) for entry in entries)


def scenarios(masters: int) -> list[Scenario]:
    """Return all scenarios, for a quorum of this number of masters."""
    others = sorted({*MASTERS} - {1, masters})
    return [
        *work(masters),
        cycle(masters),
        cycle_on_one(),
        *(cycle_on_others(count) for count in others),
        throughput(masters),
        throughput_on_one(),
        callers(masters),
        *crowd(masters),
        *hot_scenarios(masters),
        *drop_in_scenarios(masters),
        batches(masters),
        encrypted(masters),
        unix(masters),
        sickness(masters),
        beside_a_busy_thread(masters),
        memory(masters),
        imports(),
    ]


def work(masters: int) -> list[Scenario]:
    """Return the scenarios on one core, which measure the work alone.

    In a virtual machine the wake-up of a sleeping core costs 30-40 us, more than the rest of a round trip. The cost
    depends on the core that the scheduler chooses for each server: one client had ratios from 1.8 to 7.6. On one core
    there are no such wake-ups, only work, and the same ratio is 2.90..2.93. The race shows both kinds of figures,
    because a service has both kinds of costs.
    """
    all_masters = (FLOOR, REDLATCH, NOWAIT, PURE, REDLOCK)
    one_master = (FLOOR, REDLATCH, PURE, REDLOCK, Entry("redis-py Lock", "redis-py"))
    title = "One cycle, one caller, one core, N={}"
    settings = {"ratios": LATENCY, "one_core": True, "rounds": 9}
    return [
        Scenario(f"work-n{masters}", title.format(masters), all_masters, **settings),  # type: ignore[arg-type]
        Scenario("work-n1", title.format(1), on("1", *one_master), **settings),  # type: ignore[arg-type]
    ]


def cycle(masters: int) -> Scenario:
    """Return the scenario of one caller on all cores, with every client that has a quorum."""
    entries = (
        FLOOR,
        REDLATCH,
        NOWAIT,
        PURE,
        REDLOCK,
        Entry("pottery", "pottery"),
        Entry("pottery asyncio", "pottery-aio"),
        Entry("aioredlock", "aioredlock"),
    )
    return Scenario(f"cycle-n{masters}", f"One cycle, one caller, all cores, N={masters}", entries, LATENCY, rounds=9)


def cycle_on_one() -> Scenario:
    """Return the scenario of one caller on one master, with every client."""
    entries = (
        FLOOR,
        REDLATCH,
        PURE,
        REDLOCK,
        Entry("redis-py Lock", "redis-py"),
        Entry("python-redis-lock", "python-redis-lock"),
        Entry("pottery", "pottery"),
        Entry("redlatch asyncio", "redlatch-aio-c"),
        Entry("redis.asyncio Lock", "redis-py-aio"),
        Entry("coredis lock", "coredis"),
    )
    title = "One cycle, one caller, all cores, N=1"
    return Scenario("cycle-n1", title, on("1", *entries), LATENCY, rounds=7, seconds=0.2)


def cycle_on_others(count: int) -> Scenario:
    """Return the scenario of one caller on a number of masters that only the plot needs."""
    entries = on(str(count), FLOOR, REDLATCH, PURE, REDLOCK)
    return Scenario(f"cycle-n{count}", f"One cycle, one caller, all cores, N={count}", entries, LATENCY, seconds=0.2)


def throughput(masters: int) -> Scenario:
    """Return the scenario of many callers on distinct names."""
    entries = (
        LIMIT,
        REDLOCK,
        Entry("redlock-py, 64 threads", "redlock-py", "threads", 64),
        # More tasks are slower for pottery.
        Entry("pottery asyncio, 64 tasks", "pottery-aio", "tasks", 64),
        Entry("aioredlock, 64 tasks", "aioredlock", "tasks", 64),
        Entry("asyncio, 512 tasks", "redlatch-aio-c", "tasks", 512),
        Entry("uvloop, 512 tasks", "redlatch-uvloop-c", "tasks", 512),
        Entry("asyncio pure, 512 tasks", "redlatch-aio-python", "tasks", 512),
        Entry("64 threads", "redlatch-c", "threads", 64),
        Entry("64 threads pure", "redlatch-python", "threads", 64),
    )
    ratios = (
        Ratio("rate / redlock-py", "cycles_per_s", REDLOCK.label),
        AGAINST_LIMIT,
        Ratio("CPU / redlock-py", "cpu_us_per_cycle", REDLOCK.label),
    )
    title = f"Many callers on distinct names, N={masters}"
    return Scenario(f"throughput-n{masters}", title, entries, ratios, rounds=6, seconds=0.35)


def throughput_on_one() -> Scenario:
    """Return the scenario of many callers on distinct names, on one master."""
    base = Entry("redis.asyncio Lock, 512 tasks", "redis-py-aio", "tasks", 512)
    entries = (
        LIMIT,
        base,
        Entry("coredis lock, 512 tasks", "coredis", "tasks", 512),
        Entry("asyncio, 512 tasks", "redlatch-aio-c", "tasks", 512),
        Entry("uvloop, 512 tasks", "redlatch-uvloop-c", "tasks", 512),
        Entry("redis-py Lock, 64 threads", "redis-py", "threads", 64),
        Entry("64 threads", "redlatch-c", "threads", 64),
    )
    ratios = (Ratio("rate / redis.asyncio", "cycles_per_s", base.label), AGAINST_LIMIT)
    return Scenario(
        "throughput-n1", "Many callers on distinct names, N=1", on("1", *entries), ratios, rounds=5, seconds=0.3
    )


def callers(masters: int) -> Scenario:
    """Return the scenario for the plot of throughput against the number of callers."""
    limit = "C limit, {width} deep"
    kinds = (
        (limit, FLOOR_PROGRAM, "pipeline", CALLERS),
        ("asyncio, {width} tasks", "redlatch-aio-c", "tasks", CALLERS),
        ("uvloop, {width} tasks", "redlatch-uvloop-c", "tasks", CALLERS),
        # With more threads the figures measure the scheduler.
        ("{width} threads", "redlatch-c", "threads", CALLERS[:4]),
        # The two peers have no room for more connections.
        ("redlock-py, {width} threads", "redlock-py", "threads", CALLERS[:3]),
        ("pottery asyncio, {width} tasks", "pottery-aio", "tasks", CALLERS[:3]),
    )
    entries = tuple(
        Entry(label.format(width=width), contender, mode, width)
        for label, contender, mode, widths in kinds
        for width in widths
    )
    ratios = (Ratio("rate / C limit as wide", "cycles_per_s", limit),)
    title = f"Throughput against the number of callers, N={masters}"
    return Scenario(f"callers-n{masters}", title, entries, ratios, rounds=3, seconds=0.2)


def crowd(masters: int) -> list[Scenario]:
    """Return the scenarios of the CPU time of a cycle with many tasks, compared with fewer tasks."""
    made = []
    for loop, contender in (("asyncio", "redlatch-aio-c"), ("uvloop", "redlatch-uvloop-c")):
        few, many = (Entry(f"{width} tasks", contender, "tasks", width) for width in (64, 4096))
        ratios = (Ratio("CPU / 64 tasks", "cpu_us_per_cycle", few.label),)
        title = f"CPU per cycle in a crowd, {loop}, N={masters}"
        made.append(Scenario(f"crowd-{loop}-n{masters}", title, (few, many), ratios, rounds=4, seconds=0.6))
    return made


def batches(masters: int) -> Scenario:
    """Return the scenario of many locks in one call; the p50 is that of a batch, a cycle is one lock of the batch."""
    entries = (
        LIMIT,
        *(Entry(f"batches of {width}", "redlatch-c", "batch", width) for width in (1, 16, 256, 1024, 4096)),
        Entry("pure, batches of 1024", "redlatch-python", "batch", 1024),
        Entry("asyncio, batches of 1024", "redlatch-aio-c", "batch", 1024),
    )
    title = f"acquire_many and release_many, one caller, N={masters}"
    return Scenario(f"batch-n{masters}", title, entries, (AGAINST_LIMIT,), rounds=4)


def encrypted(masters: int) -> Scenario:
    """Return the scenario over TLS; the floor has no TLS and so shows the cost of TLS."""
    floor = Entry("floor (C), no TLS", FLOOR_PROGRAM, masters="tcp")
    entries = (floor, REDLATCH, PURE, REDLOCK)
    ratios = (Ratio("p50 / floor", "p50_us", floor.label), Ratio("p50 / redlock-py", "p50_us", REDLOCK.label))
    return Scenario(f"tls-n{masters}", f"One cycle over TLS, N={masters}", entries, ratios, ground="tls")


def unix(masters: int) -> Scenario:
    """Return the scenario over unix sockets."""
    entries = (FLOOR, *on("tcp", replace(FLOOR, label="floor (C), TCP")), REDLATCH, PURE, REDLOCK)
    title = f"One cycle over unix sockets, N={masters}"
    return Scenario(f"unix-n{masters}", title, entries, LATENCY, ground="unix", seconds=0.2)


def sickness(masters: int) -> Scenario:
    """Return the scenario in which some masters are stopped, dead or unreachable, and the others are healthy.

    Only redlatch races here: its peers wait for a sick master until their own time-out, seconds in every cycle, or
    raise.
    """
    healthy = Entry("all healthy", "redlatch-c")
    words = {"stopped": "stopped (SIGSTOP)", "refused": "dead (port refused)", "swallowed": "black-holed"}
    counts = {1: "one", 2: "two"} if masters >= 5 else {1: "one"}
    entries = (
        healthy,
        *(
            Entry(f"{count} {word}", "redlatch-c", masters=f"{illness}-{number}")
            for number, count in counts.items()
            for illness, word in words.items()
        ),
    )
    ratios = (Ratio("p50 / healthy", "p50_us", healthy.label), Ratio("p99 / healthy", "p99_us", healthy.label))
    title = f"Sick masters, one caller, redlatch compiled, N={masters}"
    return Scenario(f"sick-n{masters}", title, entries, ratios, ground="sickbed", rounds=7)


def beside_a_busy_thread(masters: int) -> Scenario:
    """Return the scenario of one caller in a process where another thread computes."""
    entries = tuple(
        replace(who, label=f"{who.contender.removesuffix('-c')}, {what}", mode=mode)
        for who in (REDLATCH, REDLOCK)
        for what, mode in (("idle", "cycle"), ("beside", "beside"), ("thread only", "spin"))
    )
    ratios = (
        Ratio("p50 / idle", "p50_us", "{who}, idle"),
        # The rate also shows the few long cycles, in which the caller loses the interpreter.
        Ratio("rate / idle", "cycles_per_s", "{who}, idle"),
        Ratio("thread / alone", "spins_per_s", "{who}, thread only"),
    )
    title = f"Beside a CPU-bound thread of the same process, N={masters}"
    columns = ("p50_us", "p99_us", "cycles_per_s", "spins_per_s")
    return Scenario(f"beside-n{masters}", title, entries, ratios, seconds=0.3, columns=columns)


def memory(masters: int) -> Scenario:
    """Return the scenario of many locks held at once by one process."""
    base = Entry("redlatch compiled, N=1", "redlatch-c", "memory", masters="1")
    one = (
        Entry("redlatch asyncio, N=1", "redlatch-aio-c"),
        Entry("redlatch pure, N=1", "redlatch-python"),
        Entry("redlock-py, N=1", "redlock-py"),
        Entry("redis-py Lock", "redis-py"),
        Entry("python-redis-lock", "python-redis-lock"),
        Entry("redis.asyncio Lock", "redis-py-aio"),
        Entry("coredis lock", "coredis"),
        Entry("pottery asyncio, N=1", "pottery-aio"),
    )
    entries = (
        base,
        Entry(f"redlatch compiled, N={masters}", "redlatch-c", "memory"),
        *(replace(entry, mode="memory", masters="1") for entry in one),
    )
    return Scenario(
        "memory",
        "Memory per held lock, 10 000 held",
        entries,
        (Ratio("bytes / redlatch", "bytes_per_lock", base.label),),
        rounds=1,
        spare=0,
        amount=10_000,
        columns=("bytes_per_lock",),
    )


def imports() -> Scenario:
    """Return the scenario of a process that imports a client, makes one, and ends."""
    nothing = Entry("Python alone", "import-nothing")
    packages = ("redlatch", "redis", "redlock-py", "python-redis-lock", "pottery", "coredis", "aioredlock")
    entries = (nothing, *(Entry(package, f"import-{package}") for package in packages))
    ratios = (Ratio("p50 / Python alone", "p50_us", nothing.label), Ratio("p50 / redis-py", "p50_us", "redis"))
    title = "A process that imports and makes a client"
    return Scenario("import", title, entries, ratios, rounds=4, amount=1, columns=("p50_us",))
