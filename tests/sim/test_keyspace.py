"""Compares the model master with real servers: the same random commands must get the same replies."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hiredis import PushNotification, Reader, ReplyError
from support.masters import SERVERS
from support.selection import ALL

from redlatch.testing import embedded
from redlatch.testing.memory.keyspace import Keyspace
from redlatch.testing.memory.lua import Refusal, Status
from redlatch.votes import commands, condition_scripts, family_scripts, scripts
from redlatch.votes.commands import pack
from sim.master import Master
from sim.world import MILLISECOND, Drifting, World

SCRIPTS = scripts.ALL + family_scripts.ALL + condition_scripts.ALL
FAMILY = family_scripts.ALL + condition_scripts.ALL
KEYS = [b"a", b"b", b"c", b"d", b"e"]
VALUES = [b"", b"x", b"y", b"7", b"123456789"]
MEMBERS = [b"m1", b"m2", b"w", b"0", b"1"]
SCORES = [b"0", b"1", b"2", b"1.5", b"-3", b"inf", b"200000", b"1800000000000"]
# The number of commands for each kind of server.
COMMANDS = 36_000 if ALL else 12_000
# The number of commands in one round trip.
TOGETHER = 200

# The model reads its clock a little earlier than the server.
LATE_MS = 5_000


def words(chance: random.Random) -> list[bytes]:
    """Draw a command."""
    key, other, value = chance.choice(KEYS), chance.choice(KEYS), chance.choice(VALUES)
    member, score, ms = chance.choice(MEMBERS), chance.choice(SCORES), b"%d" % chance.choice((60_000, 90_000_000))
    edges = [chance.choice((b"-inf", b"+inf", b"(", b"")) for _ in range(2)]
    least, most = [edge + (b"" if edge.endswith(b"inf") else chance.choice(SCORES)) for edge in edges]
    return chance.choice(
        [
            [b"SET", key, value, b"NX", b"PX", ms],
            [b"SET", key, value, b"NX", b"PX", ms],
            [b"SET", key, value, b"PX", chance.choice((ms, b"0", b"-1", b"x"))],
            [b"SET", key, value, b"XX", chance.choice((b"KEEPTTL", b"NX"))],
            [b"SET", key, value],
            [b"GET", key],
            [b"STRLEN", key],
            [b"EXISTS", key, other],
            [b"DEL", key, other],
            [b"PTTL", key],
            [b"PEXPIRE", key, chance.choice((ms, ms, b"0", b"-5", b"x"))],
            [b"ZADD", key, score, member, chance.choice(SCORES), chance.choice(MEMBERS)],
            [b"ZADD", key, chance.choice((score, b"x")), member],
            [b"ZADD", key, b"XX", score, member, chance.choice(SCORES), chance.choice(MEMBERS)],
            [b"ZREM", key, member, chance.choice(MEMBERS)],
            [b"ZSCORE", key, member],
            [b"ZCARD", key],
            [b"ZRANGE", key, b"%d" % chance.randint(-3, 3), b"%d" % chance.randint(-3, 3)],
            [b"ZRANGE", key, b"-1", b"-1", b"WITHSCORES"],
            [b"ZCOUNT", key, least, most],
            [b"ZREMRANGEBYSCORE", key, least, most],
            [b"HSET", key, member, value],
            [b"HGET", key, member],
            [b"HLEN", key],
            [b"HDEL", key, member],
            [b"DELIFEQ", key, value],
            [b"DELEX", key, b"IFEQ", value],
            [b"SCRIPT", b"FLUSH"],
            *[script_words(chance, key, value, ms) for _ in range(30)],
        ]
    )


def script_words(chance: random.Random, key: bytes, value: bytes, ms: bytes) -> list[bytes]:
    """Draw the call of one of our scripts, with keys and arguments that suit it."""
    script = chance.choice(SCRIPTS)
    family = script in FAMILY
    key = b"%d-" % SCRIPTS.index(script) + key if not family or chance.random() < 0.1 else family_key(script) + key
    number = b"%d" % chance.choice((1, 2, 50, 100_000, 250_000, 10**15, 3 * 10**15))
    token = chance.choice(VALUES)
    arguments = {
        "FAIR_ACQUIRE": [token, ms, chance.choice(MEMBERS), number, b"60000", chance.choice((b"0", b"1", b"2"))],
        "FAIR_RELEASE": [token, chance.choice(MEMBERS), number],
        "FAIR_UNDO": [token, chance.choice(MEMBERS), number, b"60000"],
        "WRITE_ACQUIRE": [token, ms, ms, chance.choice(MEMBERS)],
        "WRITE_RELEASE": [token, chance.choice((b"", *MEMBERS))],
        "SLOT_ACQUIRE": [token, ms, chance.choice((b"0", b"1", b"2")), b"0", b"3", b"3"],
        "RATE_ACQUIRE": [token, ms, chance.choice((b"0", b"1", b"2")), b"0", b"3", b"3"],
        "SLOT_RELEASE": [token, chance.choice((b"0", b"1", b"2"))],
        "SLOT_EXTEND": [token, chance.choice((b"0", b"1", b"2")), ms],
        "SLOT_OWNED": [token, chance.choice((b"0", b"1", b"2"))],
        "FULL": [b"1"],
        "CALL_WAIT": [number, b"60000", b"90000", chance.choice((b"0", b"1"))],
        "CALL_NOTIFY": [number, chance.choice((b"0", b"1", b"3")), b"90000"],
        "CALL_LEAVE": [number, chance.choice((b"0", b"1", b"50", b"100000")), b"90000"],
        "LATCH_LOOK": [],
        "LATCH_ADD": [b"60000", b"4", *[b"%d" % chance.randint(4, 9) for _ in range(chance.randint(0, 2))]],
        "LATCH_OPEN": [b"60000"],
        "LATCH_AT": [chance.choice((b"1", b"2"))],
        "LATCH_UNDO": [b"%d" % chance.randint(4, 9)],
        "ACQUIRE_FENCED": [token, ms, number, b"%d" % (int(number) + 2)],
        "CONFIRM": [token, number, b"%d" % (int(number) + 2)],
    }.get(NAMES[script], [token, ms, ms])
    suffixes = [b"", b"\0one", b"\0two"][: script.keys]
    whole = [b"%d" % len(suffixes), *[key + suffix for suffix in suffixes], *arguments]
    if chance.random() < 0.5:
        return [b"EVALSHA", script.sha, *whole]
    return [b"EVAL", script.text, *whole]


NAMES = {
    script: name
    for module in (scripts, family_scripts, condition_scripts)
    for name, script in vars(module).items()
    if isinstance(script, scripts.Script)
}


def family_key(script: scripts.Script) -> bytes:
    """Return a prefix that the scripts of one kind share."""
    kind = NAMES[script].partition("_")[0]
    return {"WRITE": b"READ", "FULL": b"SLOT", "RATE": b"SLOT"}.get(kind, kind.encode()) + b"-"


class Server:
    """A connection to a real server over a bare socket."""

    def __init__(self, url: str, protocol: int) -> None:
        host, port = url.removeprefix("redis://").split("/")[0].split(":")
        self.sock = socket.create_connection((host, int(port)), 10.0)
        self.reader = Reader(replyError=ReplyError)
        self.pushes: list[bytes | None] = []
        self.ask([[b"HELLO", b"%d" % protocol]])

    def ask(self, asked: list[list[bytes]]) -> list[Any]:
        """Return the reply to each command; keep the pushes that arrive meanwhile."""
        self.sock.sendall(b"".join([pack(*command) for command in asked]))
        replies: list[Any] = []
        while len(replies) < len(asked):
            reply = self.reader.gets()
            if reply is False:
                self.reader.feed(self.sock.recv(65536))
            elif isinstance(reply, PushNotification):
                self.pushes.append(reply[1] and reply[1][0])
            else:
                replies.append(reply)
        return replies


@pytest.fixture(params=list(SERVERS) if ALL else ["valkey"])
def call(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Server]]:
    """Connect to a server of each kind in turn, in RESP2 or RESP3."""
    program = SERVERS[request.param]
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    with embedded.masters(1, server=program) as urls, contextlib.ExitStack() as stack:

        def call(protocol: int) -> Server:
            server = Server(urls[0], protocol)
            stack.callback(server.sock.close)
            return server

        yield call


def natives(server: Server) -> frozenset[bytes]:
    """Return the native commands that the server has."""
    asked = {b"delifeq": [b"DELIFEQ", b"no", b"no"], b"delex": [b"DELEX", b"no", b"IFEQ", b"no"]}
    return frozenset(name for name, words in asked.items() if not isinstance(server.ask([words])[0], ReplyError))


def plain(reply: Any) -> Any:
    """Convert a reply of the model or of a server to a value that can be compared; an error becomes its kind."""
    if isinstance(reply, (Refusal, ReplyError)):
        # Redis 6 puts other words before the error of a command in a script.
        within = re.search(r" -([A-Z]+) ", str(reply))
        return ("error", within[1] if within else str(reply).split(" ")[0])
    if isinstance(reply, Status):
        return reply.encode()
    return [plain(item) for item in reply] if isinstance(reply, list) else reply


def alike(one: Any, other: Any) -> bool:
    """Return whether two replies are equal, apart from the time that passed between them."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if one == other:
        return True
    try:
        first, second = float(one), float(other)
    except (TypeError, ValueError):
        return False
    micros = abs(first) > 1e15
    return abs(first) > 1000 and abs(first - second) <= LATE_MS * (1000 if micros else 1)


def test_the_model_answers_as_real_servers_do(call: Callable[[int], Server]) -> None:
    chance = random.Random(0)
    server = call(2)
    model = Keyspace(lambda: time.time_ns() // 1000, lambda key: None, natives(server))
    for _ in range(COMMANDS // TOGETHER):
        asked = [words(chance) for _ in range(TOGETHER)]
        replies = server.ask(asked)
        for command, reply in zip(asked, replies, strict=True):
            answer = plain(model.execute(command))
            assert alike(answer, plain(reply)), f"{command}: the model says {answer!r}, the server {reply!r}"


def test_keys_go_when_their_time_is_over(call: Callable[[int], Server]) -> None:
    server = call(2)
    model = Keyspace(lambda: time.time_ns() // 1000, lambda key: None)
    for asked in (
        [
            [b"SET", b"a", b"x", b"PX", b"5"],
            [b"HSET", b"h", b"f", b"v"],
            [b"PEXPIRE", b"h", b"5"],
            [b"SET", b"b", b"x"],
        ],
        [[b"GET", b"a"], [b"PTTL", b"a"], [b"EXISTS", b"h", b"b"], [b"HGET", b"h", b"f"], [b"PTTL", b"b"]],
        [[b"SET", b"a", b"y", b"NX", b"PX", b"5"], [b"SET", b"c", b"y", b"XX", b"KEEPTTL"]],
        [[b"SET", b"a", b"z", b"XX", b"KEEPTTL"], [b"DEL", b"a"], [b"PEXPIRE", b"a", b"5"]],
    ):
        assert [plain(model.execute(words)) for words in asked] == [plain(reply) for reply in server.ask(asked)]
        time.sleep(0.02)


class Told:
    """A connection of the model master that keeps the pushes and the replies it gets."""

    bridge = None
    excused = False

    def __init__(self) -> None:
        self.reader = Reader()
        self.pushes: list[Any] = []
        self.replies: list[Any] = []

    def answer(self, data: bytes) -> None:
        self.reader.feed(data)
        while (reply := self.reader.gets()) is not False:
            if isinstance(reply, PushNotification):
                self.pushes.append(reply[1] and reply[1][0])
            else:
                self.replies.append(str(reply).partition(" ")[0] if isinstance(reply, Exception) else reply)


def test_the_model_pushes_as_real_servers_do(call: Callable[[int], Server]) -> None:
    """Three clients read keys, track them, and change keys; the model and the server push the same changes."""
    chance = random.Random(1)
    servers = [call(3) for _ in range(3)]
    master = Master(World(0), 0, Drifting(0, 1.0), "old", True, lambda *told: None)
    clients = [Told() for _ in servers]
    for server, client in zip(servers, clients, strict=True):
        server.ask([[b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"]])
        master.welcome(client, {})  # type: ignore[arg-type]
    note = commands.Note().payload(commands.FULL_TEXT)
    for _ in range(3000):
        who = chance.randrange(3)
        asked = words(chance)
        while asked[0] in (b"EVALSHA", b"DELIFEQ", b"DELEX", b"SCRIPT"):
            asked = words(chance)
        question = asked[0] in (b"GET", b"STRLEN", b"PTTL", b"EXISTS")
        asked = asked[:2] if question else asked
        if question and chance.random() < 0.7:
            servers[who].ask([[b"CLIENT", b"CACHING", b"YES"]])
            master.receive(clients[who], note)  # type: ignore[arg-type]
        servers[who].ask([asked])
        master.receive(clients[who], pack(*asked))  # type: ignore[arg-type]
        for server, client in zip(servers, clients, strict=True):
            server.ask([[b"PING"]])
            assert server.pushes == client.pushes, f"after {asked} of client {who}"
            server.pushes.clear()
            client.pushes.clear()


def test_a_client_that_finds_a_key_expired_gets_a_push_for_its_next_value(call: Callable[[int], Server]) -> None:
    world, note = World(0), commands.Note().payload(commands.FULL_TEXT)
    master = Master(world, 0, Drifting(0, 1.0), "old", True, lambda *told: None)
    asking, other, client, rival = call(3), call(3), Told(), Told()
    asking.ask([[b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"]])
    for each in (client, rival):
        master.welcome(each, {})  # type: ignore[arg-type]
    # The server looks for expired keys now and then. Mostly the read finds that this one has expired.
    for _ in range(5):
        other.ask([[b"SET", b"a", b"x", b"PX", b"3"]])
        master.receive(rival, pack(b"SET", b"a", b"x", b"PX", b"3"))  # type: ignore[arg-type]
        time.sleep(0.006)
        world.now += 6 * MILLISECOND
        asking.ask([[b"CLIENT", b"CACHING", b"YES"], [b"PTTL", b"a"]])
        master.receive(client, note + pack(b"PTTL", b"a"))  # type: ignore[arg-type]
        other.ask([[b"SET", b"a", b"y"]])
        master.receive(rival, pack(b"SET", b"a", b"y"))  # type: ignore[arg-type]
        asking.ask([[b"PING"]])
        assert asking.pushes == client.pushes == [b"a"]
        asking.pushes.clear()
        client.pushes.clear()


@pytest.mark.parametrize("refusal", ["full", "replica"])
def test_the_model_refuses_as_real_servers_do(call: Callable[[int], Server], refusal: str) -> None:
    """Compare replies at maxmemory, which refuses commands that grow, and on a replica, which refuses all writes.

    Scripts fail at the first refused command.
    """
    chance = random.Random(2)
    server = call(2)
    model = Keyspace(lambda: time.time_ns() // 1000, lambda key: None, natives(server))
    asked = [words(chance) for _ in range(2000)]
    for command, reply in zip(asked, server.ask(asked), strict=True):
        assert alike(plain(model.execute(command)), plain(reply))
    setattr(model, refusal, True)
    ways = {"full": [b"CONFIG", b"SET", b"maxmemory", b"1"], "replica": [b"REPLICAOF", b"127.0.0.1", b"1"]}
    assert server.ask([ways[refusal]]) == [b"OK"]
    refused = 0
    for _ in range(2000):
        command = words(chance)
        [reply] = server.ask([command])
        answer = plain(model.execute(command))
        assert alike(answer, plain(reply)), f"{command}: the model says {answer!r}, the server {reply!r}"
        refused += answer == ("error", "OOM" if refusal == "full" else "READONLY")
    assert refused > 100


BEGIN = [[b"WATCH", b"k", b"l"], [b"GET", b"k"], [b"MULTI"], [b"SET", b"m", b"1", b"PX", b"60000"]]
# What another client does between WATCH and EXEC.
AMID: dict[str, list[list[bytes]]] = {
    "nothing": [[b"GET", b"k"]],
    "the same value": [[b"SET", b"k", b"t", b"PX", b"60000"]],
    "longer": [[b"PEXPIRE", b"k", b"90000"]],
    "gone and back": [[b"DEL", b"k"], [b"SET", b"k", b"t", b"PX", b"60000"]],
    "a new key": [[b"SET", b"l", b"t", b"PX", b"60000"]],
    "another key": [[b"SET", b"n", b"t", b"PX", b"60000"]],
    "a missing key": [[b"DEL", b"l"]],
    "no value": [[b"SET", b"k", b"x", b"NX", b"PX", b"60000"]],
}


@pytest.mark.parametrize("amid", AMID)
def test_the_model_aborts_transactions_as_real_servers_do(call: Callable[[int], Server], amid: str) -> None:
    master = Master(World(0), 0, Drifting(0, 1.0), "old", True, lambda *told: None)
    clients, servers = [Told(), Told()], [call(2), call(2)]
    for client in clients:
        master.welcome(client, {})  # type: ignore[arg-type]
    steps = [
        *[(1, words) for words in ([b"DEL", b"k", b"l", b"m", b"n"], [b"SET", b"k", b"t", b"PX", b"60000"])],
        *[(0, words) for words in BEGIN],
        *[(1, words) for words in AMID[amid]],
        *[(0, words) for words in ([b"EXEC"], [b"GET", b"m"], [b"EXEC"], [b"DISCARD"])],
    ]
    expected: list[list[Any]] = [[], []]
    for who, words in steps:
        master.receive(clients[who], pack(*words))  # type: ignore[arg-type]
        for reply in servers[who].ask([words]):
            expected[who].append(str(reply).partition(" ")[0] if isinstance(reply, Exception) else reply)
    assert [client.replies for client in clients] == expected
