"""The scenarios of the drop-ins: each peer's own interface, with the peer behind it and with redlatch.

Peers race only where they have locks: those that ask a quorum on so many masters as there are, the others on one.
"""

from __future__ import annotations

from dataclasses import replace

from redlatch.bench.rounds import Entry, Ratio, Scenario

WORKERS = 64

# By contender: what it is called, and whether it has tasks and no threads.
OF_A_QUORUM = {"redlock-py": False, "pottery": False, "pottery-aio": True, "aioredlock": True}
OF_ONE = {"redis-py": False, "redis-py-aio": True, "python-redis-lock": False}


def drop_in_scenarios(masters: int) -> list[Scenario]:
    """Return the scenarios, for a quorum of so many masters and for one."""
    made = []
    for count in (masters, 1):
        made.append(scenario(f"drop-in-n{count}", f"Drop-ins, one caller, N={count}", count))
        title = f"Drop-ins, {WORKERS} workers on {{}}, N={count}"
        made.append(scenario(f"drop-in-many-n{count}", title.format("distinct names"), count, "threads", "tasks"))
        made.append(scenario(f"drop-in-hot-n{count}", title.format("one hot name"), count, "hot", "hot"))
    return made


def scenario(name: str, title: str, masters: int, of_threads: str = "cycle", of_tasks: str = "cycle") -> Scenario:
    """Return one: every peer that runs on so many masters, and its drop-in."""
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
