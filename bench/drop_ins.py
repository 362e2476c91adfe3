"""The scenarios of the drop-ins: the interface of each peer, with the peer's own code and with redlatch behind it.

Peers that ask a quorum race on all masters. The other peers lock on a single master, so they race on one.
"""

from __future__ import annotations

from dataclasses import replace

from bench.rounds import Entry, Ratio, Scenario

WORKERS = 64

# The peers that ask a quorum, and the peers of a single master. The value is True if the peer is for asyncio.
OF_A_QUORUM = {"redlock-py": False, "pottery": False, "pottery-aio": True, "aioredlock": True}
OF_ONE = {"redis-py": False, "redis-py-aio": True, "python-redis-lock": False}


def drop_in_scenarios(masters: int) -> list[Scenario]:
    """Return the scenarios, for a quorum of this number of masters and for one master."""
    made = []
    for count in (masters, 1):
        made.append(scenario(f"drop-in-n{count}", f"Drop-ins, one caller, N={count}", count))
        title = f"Drop-ins, {WORKERS} workers on {{}}, N={count}"
        made.append(scenario(f"drop-in-many-n{count}", title.format("distinct names"), count, "threads", "tasks"))
        made.append(scenario(f"drop-in-hot-n{count}", title.format("one hot name"), count, "hot", "hot"))
    return made


def scenario(name: str, title: str, masters: int, of_threads: str = "cycle", of_tasks: str = "cycle") -> Scenario:
    """Return a scenario of every peer for this number of masters, and its drop-in.

    Args:
        name, title: of the scenario.
        masters: the number of masters.
        of_threads, of_tasks: the mode of peers for threads, and of peers for asyncio.
    """
    entries = []
    for contender, asynchronous in (OF_ONE if masters == 1 else OF_A_QUORUM).items():
        mode = of_tasks if asynchronous else of_threads
        peer = Entry(f"{contender}, original", contender, mode, 1 if mode == "cycle" else WORKERS)
        drop_in = replace(peer, label=f"{contender}, drop-in", contender=f"{contender}-drop-in")
        entries += [replace(entry, masters="1" if masters == 1 else "all") for entry in (peer, drop_in)]
    ratios = (Ratio("rate / original", "cycles_per_s", "{who}, original"),)
    hot = of_threads == "hot"
    columns = ("changes_per_s", "cycles_per_s") if hot else ("p50_us", "p99_us", "cycles_per_s")
    return Scenario(name, title, tuple(entries), ratios, rounds=3, spare=0, seconds=0.25, columns=columns)
