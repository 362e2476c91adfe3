"""The race against the lock clients of other languages: the clients, what each does not do, and the scenarios.

Each client runs in a program of its language (`bench/languages`), with its fastest documented settings, and with one
attempt, so that no pause for a retry falls into a cycle. Each program stays connected over all rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.builds import GO, JAVA, NODE, RUST, Language, NotBuilt, build
from bench.process import FLOOR
from bench.rounds import Entry, Ratio, Scenario

WIDTHS = (1, 64, 512)


@dataclass(frozen=True)
class Client:
    """A lock client of another language.

    Args:
        label: its name in the tables.
        language: the language of its program.
        arguments: the arguments that choose it in the program.
        modes: the modes of its runs with many callers. Default ("tasks",).
        on: the numbers of masters that it can use: "all" or "1". Default both.
    """

    label: str
    language: Language
    arguments: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("tasks",)
    on: tuple[str, ...] = ("all", "1")


CLIENTS = {
    "rslock": Client("rslock", RUST),
    "rslock-one-thread": Client("rslock, one thread", RUST, ("--one-thread",)),
    "redsync-goredis": Client("redsync, go-redis", GO, ("--client", "redsync-goredis")),
    "redsync-rueidis": Client("redsync, rueidis", GO, ("--client", "redsync-rueidis")),
    "rueidislock": Client("rueidislock", GO, ("--client", "rueidislock"), on=("1",)),
    "node-redlock": Client("node-redlock", NODE),
    "node-redlock-pipelining": Client("node-redlock, pipelining", NODE, ("--pipelining",)),
    "redisson": Client("Redisson", JAVA, modes=("threads", "tasks")),
}

# What each client does not do, as read in the source of the version that is raced.
FOOTNOTES = {
    "all of them": (
        "release only their own lock; none keeps a master out that may have forgotten locks, "
        "and none of these locks has a fence"
    ),
    "rslock 0.10.0": (
        "waits for every master. It checks the validity with drift, but does not undo an attempt that took too long. "
        "The release does not report a lost lock"
    ),
    "redsync 4.18.1": (
        "waits for every master (the option WithFailFast ends that). It checks the validity with drift. "
        "It undoes a refused attempt once; a vote that arrives later stays until its ttl"
    ),
    "node-redlock 5.0.0-beta.2": (
        "returns at a majority, and undoes a refused attempt. It never compares the time with the validity, "
        "so a lock that took longer than its ttl counts as won; it takes times from the wall clock"
    ),
    "Redisson 3.52.0": (
        "N=5 is RedissonRedLock, which is deprecated: it asks one master after the other, has neither a check of the "
        "validity nor a drift, sets the ttl again without a check of the owner, and its unlock ignores errors. "
        "N=1 is RLock, which is re-entrant, and announces each release to waiters"
    ),
    "rueidislock 1.0.79": (
        "takes part in N=1 only: it locks a majority of three keys of one server or cluster, not of independent "
        "masters. It renews the lock and reports its loss. The ttl ends at a time of the client's wall clock, and "
        "tokens come from a generator that is not for secrets"
    ),
}


def build_all(announce: Callable[[dict[str, Any]], object]) -> tuple[dict[str, list[str] | str], dict[str, str]]:
    """Build the programs of all languages whose toolchains are here.

    Args:
        announce: called with {"note": ...} before each build, and for each language that is left out.

    Returns:
        The command of each client, or the reason why it is absent; and the versions of the toolchains.
    """
    programs: dict[str, list[str] | str] = {}
    versions = {}
    for language in (RUST, GO, NODE, JAVA):
        mine = {name: client for name, client in CLIENTS.items() if client.language is language}
        announce({"note": f"Building the program in {language.name} ..."})
        try:
            versions[language.name] = build(language)
        except NotBuilt as reason:
            announce({"note": f"{language.name} IS LEFT OUT: {reason}."})
            programs |= dict.fromkeys(mine, str(reason))
        else:
            for name, client in mine.items():
                programs[name] = [*language.command(), *client.arguments, "--stdin"]
    return programs, versions


def language_scenarios(masters: int) -> list[Scenario]:
    """Return the scenarios, for a quorum of this number of masters and for one master."""
    return [scenario(count, width) for count in (masters, 1) for width in WIDTHS]


def scenario(masters: int, width: int) -> Scenario:
    """Return the scenario of so many callers on distinct names, on so many masters."""
    on = "1" if masters == 1 else "all"
    peers = tuple(
        Entry(f"{client.label}, {mode}" if len(modes) > 1 else client.label, name, mode, width)
        for name, client in CLIENTS.items()
        if on in client.on
        for modes in [("cycle",) if width == 1 else client.modes]
        for mode in modes
    )
    own = one_caller() if width == 1 else many_callers(width)
    entries = tuple(replace(entry, masters=on) for entry in own + peers)
    reference, ours = own[0].label, own[1].label
    metric, word = ("p50_us", "p50") if width == 1 else ("cycles_per_s", "rate")
    ratios = (Ratio(f"{word} / redlatch", metric, ours), Ratio(f"{word} / C", metric, reference))
    crowd = "one caller" if width == 1 else f"{width} callers at once on distinct names"
    title = f"Other languages, {crowd}, N={masters}"
    name = f"languages-n{masters}-{width}"
    # The long warm-up is for the compilers in the virtual machines of Java and JavaScript.
    return Scenario(name, title, entries, ratios, rounds=7, seconds=0.4, warm_up=3.0)


def one_caller() -> tuple[Entry, ...]:
    """Return the floor and redlatch with one caller. All ratios are to the floor, and to the first of redlatch."""
    return (
        Entry("floor (C)", FLOOR),
        Entry("redlatch", "redlatch-c"),
        Entry("redlatch asyncio", "redlatch-aio-c"),
    )


def many_callers(width: int) -> tuple[Entry, ...]:
    """Return the limit in C and redlatch with many callers. The ratios are as in `one_caller`."""
    return (
        Entry("limit (C)", FLOOR, "pipeline", width),
        Entry("redlatch asyncio", "redlatch-aio-c", "tasks", width),
        Entry("redlatch uvloop", "redlatch-uvloop-c", "tasks", width),
        Entry("redlatch threads", "redlatch-c", "threads", width),
    )
