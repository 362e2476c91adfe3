"""Row 3, many times: a master is killed and restarted empty, and no rival gets the lock that the master has voted for.

    python -m tests.faults.restarts --trials 1000

In each trial a holder has the lock on two of three masters. One of the two is killed (SIGKILL) and is back at once,
empty. With its vote and the vote of the third master a rival would have a quorum. The rival tries until the holder's
validity is over.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import redis

from redlatch import Client, Guard, LockError, QuorumUnavailable
from redlatch.testing import embedded

TTL = 0.6
# The number of fleets at a time; a trial mostly waits.
FLEETS = 12


@dataclass
class Tally:
    """The result of some trials.

    Attributes:
        trials: the number of trials.
        double: in how many of them a rival had the lock before the holder's deadline.
        tries: how often the rivals tried.
    """

    trials: int = 0
    double: int = 0
    tries: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.trials += other.trials
        self.double += other.double
        self.tries += other.tries


def rob(client: Client, holder: object, name: str, tally: Tally) -> bool:
    """Try to acquire a lock until its holder's deadline; return whether an attempt succeeded, which is a failure."""
    while holder.remaining() > 0:  # type: ignore[attr-defined]
        rival = client.lock(name)
        tally.tries += 1
        try:
            won = rival.acquire(blocking=False)
        except QuorumUnavailable:
            won = False
        if won and holder.remaining() > 0:  # type: ignore[attr-defined]
            return True
        if won:
            rival.release()
        time.sleep(0.002)
    return False


def try_often(trials: int, guard: Guard | None) -> Tally:
    """Run trials on one fleet; in turn, the rival is a client that used the masters before, and a new one."""
    tally, masters = Tally(), embedded.masters(3)
    with masters as urls, Client(urls, ttl=TTL, guard=guard) as owner, Client(urls, ttl=TTL, guard=guard) as known:
        known.connect()
        for trial in range(trials):
            victim, third = trial % 3, (trial + 1) % 3
            name = f"trial-{trial}"
            holder = _hold_on_all(owner, urls, name)
            with redis.Redis.from_url(urls[third], retry=None) as server:
                server.delete(name)
            masters.kill(victim)
            masters.start(victim)
            fresh = known if trial % 2 else Client(urls, ttl=TTL, guard=guard)
            tally.trials += 1
            tally.double += rob(fresh, holder, name, tally)
            if fresh is not known:
                fresh.close()
    return tally


def _hold_on_all(client: Client, urls: list[str], name: str) -> object:
    """Hold a lock on every master, which is possible only when the last killed master may vote again."""
    while True:
        holder = client.lock(name)
        try:
            if holder.acquire(timeout=1) and all(_has(url, name) for url in urls):
                return holder
            holder.release()
        except LockError:
            pass
        time.sleep(0.02)


def _has(url: str, name: str) -> bool:
    # A quorum has the key already.
    deadline = time.monotonic() + 0.05
    with redis.Redis.from_url(url, retry=None) as server:
        while not (there := server.exists(name)) and time.monotonic() < deadline:
            time.sleep(0.002)
    return bool(there)


def run(trials: int, guard: Guard | None, fleets: int = FLEETS) -> Tally:
    """Run trials on several fleets at once."""
    tally = Tally()
    shares = [trials // fleets + (place < trials % fleets) for place in range(fleets)]
    with ThreadPoolExecutor(fleets) as pool:
        for share in pool.map(try_often, [share for share in shares if share], itertools.repeat(guard)):
            tally.add(share)
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--without-guard", action="store_true", help="to see that it goes wrong")
    given = parser.parse_args()
    # Each client warns of each restart.
    logging.getLogger("redlatch").setLevel(logging.ERROR)
    result = run(given.trials, None if given.without_guard else Guard(max_ttl=TTL))
    print(f"{result.trials} restarts, {result.tries} tries to win meanwhile: {result.double} double grants")
    sys.exit(bool(result.double))
