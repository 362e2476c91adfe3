"""Measure how often per second a fair lock changes its owner, beside a floor that sends the same messages.

Four processes want one name all the time. The floor sends by plain sockets what redlatch sends: the release, the call
of the next waiter (a push), its attempt, and the entry into the queue with the watch on the waiter's own key. It checks
nothing: only the first master has a queue, and the others accept everything. So it is no lock. In the third contender
the release makes the next waiter the owner, so that the waiter does not ask:

    python bench/fair_floor.py [--masters 1] [--rounds 5] [--seconds 2]
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import hiredis

import redlatch
from redlatch.testing import embedded

PROCESSES = 4
# The processes import their modules during this time, in s.
START = 1.5

ENTER = """
if redis.call('LLEN', 'q') == 0 and redis.call('SET', 'lock', ARGV[1], 'NX', 'PX', 10000) then return 1 end
redis.call('RPUSH', 'q', ARGV[1])
redis.call('SET', 'wait:' .. ARGV[1], 1, 'PX', 10000)
return 0
"""
CONFIRM = """
if redis.call('GET', 'lock') ~= ARGV[1] then return 0 end
redis.call('SET', 'lock', ARGV[1], 'PX', 10000)
return 1
"""
# The next waiter is the owner at once. A floor that asks waits for the answer to CONFIRM all the same.
RELEASE = """
if redis.call('GET', 'lock') ~= ARGV[1] then return 0 end
local head = redis.call('LPOP', 'q')
if head then
  redis.call('SET', 'lock', head, 'PX', 10000)
  redis.call('DEL', 'wait:' .. head)
else
  redis.call('DEL', 'lock')
end
return 1
"""
# The scripts of all masters but the first.
ACCEPT_ENTRY = "redis.call('RPUSH', 'q', ARGV[1]) redis.call('LTRIM', 'q', -4, -1) return 0"
ACCEPT_ATTEMPT = "redis.call('SET', 'lock', ARGV[1], 'PX', 10000) return 1"
ACCEPT_RELEASE = "redis.call('DEL', 'lock') redis.call('LPOP', 'q') return 1"


class Master:
    """A connection that tracks the keys it is told to, and the scripts of this master."""

    def __init__(self, url: str, token: str, first: bool) -> None:
        host, port = url.rpartition("/")[2].split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()
        self.awaited: deque[tuple[str, int]] = deque()
        for command in (("HELLO", "3"), ("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")):
            self.ask(*command)
        scripts = (ENTER, CONFIRM, RELEASE) if first else (ACCEPT_ENTRY, ACCEPT_ATTEMPT, ACCEPT_RELEASE)
        enter, confirm, release = (
            hiredis.pack_command(("EVALSHA", self.ask("SCRIPT", "LOAD", script), "0", token)) for script in scripts
        )
        watch = hiredis.pack_command(("CLIENT", "CACHING", "YES"))
        watch += hiredis.pack_command(("STRLEN", f"wait:{token}"))
        self.commands = {"enter": enter + watch, "confirm": confirm, "release": release}

    def ask(self, *command: str) -> Any:
        """Send a command and return its reply."""
        self.socket.sendall(hiredis.pack_command(command))
        while (reply := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(65536))
        return reply

    def send(self, command: str, cycle: int) -> None:
        """Send one of the three commands."""
        self.socket.sendall(self.commands[command])
        self.awaited.append((command, cycle))
        if command == "enter":
            self.awaited += (("caching", cycle), ("called", cycle))

    def read(self, cycle: int) -> Iterator[tuple[str, Any]]:
        """Read once; yield the commands of this cycle with their replies. "called" is 0 for a waiter's turn."""
        self.reader.feed(self.socket.recv(65536))
        while (reply := self.reader.gets()) is not False:
            if isinstance(reply, hiredis.PushNotification):
                yield "called", 0
            else:
                command, asked = self.awaited.popleft()
                if asked == cycle:
                    yield command, reply


class Floor:
    """One of the processes that want the name."""

    def __init__(self, urls: list[str], token: str, asks: bool) -> None:
        self.masters = [Master(url, token, place == 0) for place, url in enumerate(urls)]
        self.quorum = len(urls) // 2 + 1
        self.asks = asks
        self.poll = select.poll()
        for master in self.masters:
            self.poll.register(master.socket, select.POLLIN)
        self.by_number = {master.socket.fileno(): master for master in self.masters}
        self.cycle = 0

    def send(self, command: str) -> None:
        for master in self.masters:
            master.send(command, self.cycle)

    def replies(self) -> Iterator[tuple[bool, str, Any]]:
        """Wait for replies; yield for each whether it is the first master's, its command and its value."""
        for number, _ in self.poll.poll():
            master = self.by_number[number]
            for command, reply in master.read(self.cycle):
                yield master is self.masters[0], command, reply

    def acquire(self) -> None:
        self.cycle += 1
        self.send("enter")
        confirmed = -1  # how many masters confirm; -1 before they are asked
        owner = False
        while not (owner and (confirmed >= self.quorum or confirmed < 0)):
            for first, command, reply in self.replies():
                if command == "enter" and first and reply == 1:
                    owner = True
                elif command == "called" and first and reply == 0 and confirmed < 0 and not owner:
                    if self.asks:
                        self.send("confirm")
                        confirmed = 0
                    else:
                        owner = True
                elif command == "confirm":
                    confirmed += reply
                    owner = owner or (first and reply == 1)

    def release(self) -> None:
        self.send("release")
        released = 0
        while released < self.quorum:
            for _, command, _ in self.replies():
                released += command == "release"


def cycle_for(contender: str, token: str, start: float, end: float, urls: list[str]) -> int:
    """Acquire and release from `start` until `end`, in s since 1970. Return how often."""
    cycles = 0
    if contender == "redlatch":
        client = redlatch.Client(urls)
        client.connect()
        await_time(start)
        while time.time() < end:
            with client.lock("hot", ttl=10, fair=True):
                cycles += 1
        return cycles
    floor = Floor(urls, token, contender == "same messages")
    await_time(start)
    while time.time() < end:
        floor.acquire()
        cycles += 1
        floor.release()
    return cycles


def await_time(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def race(contender: str, seconds: float, urls: list[str]) -> float:
    """Return the changes of the owner per second."""
    start = time.time() + START
    times = ["--start", str(start), "--end", str(start + seconds)]
    command = [sys.executable, __file__, "--contender", contender, *times, "--urls", *urls]
    started = [
        subprocess.Popen([*command, "--token", str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    return sum(int(process.communicate()[0]) for process in started) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    for internal in ("--contender", "--token"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    for internal in ("--start", "--end"):
        parser.add_argument(internal, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--urls", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(cycle_for(options.contender, options.token, options.start, options.end, options.urls))
        return
    rates: dict[str, list[float]] = {"redlatch": [], "same messages": [], "handed over": []}
    for _ in range(options.rounds):
        for contender, measured in rates.items():
            with embedded.masters(options.masters) as urls:
                measured.append(race(contender, options.seconds, urls))
    for contender, measured in rates.items():
        print(f"{contender}: {statistics.median(measured):,.0f}/s ({min(measured):,.0f}..{max(measured):,.0f})")


if __name__ == "__main__":
    main()
