"""The engine: many commands in flight on N connections, and their votes counted.

Rules:
  * Replies of one connection come in the order of its commands, so each `Link` keeps the ballots it
    owes a reply in a FIFO. A reply always falls to the oldest one, also when everybody who asked has
    left; hence no reply is ever counted for another command.
  * Anything unexpected (a reply of another type, more replies than commands, bytes that are no RESP)
    closes that connection. Its open votes become failures, never a yes or a no.
  * A link may be watched (see `protocol.guard`): once a second a pulse goes ahead of a command that acquires or
    extends. An answer that shows that the master is not to be trusted, or a push that it was flushed, closes the
    connection before the votes that come behind are counted.
  * A master is suspected when a quorum has voted without it and it then stays silent for several times the quorum's
    round time. Attempts, releases and looks no longer wait for its vote. Commands still go to it. Its next byte, or its
    next connection, ends the suspicion. A master that is only far away answers soon after each suspicion: from the
    second time on, attempts wait for it as long as it takes, so that its vote counts.
  * A release is never forgotten: one that got no answer on a connection that broke, or that came
    while it was broken, is owed, and sent first on the next connection. The key's TTL is the bound
    where there is none.
  * An exception that leaves an operation half done (Ctrl-C in pure Python may strike anywhere) leaves
    `torn` set; the next operation, or `mend`, then closes every connection, since their FIFOs can no longer be trusted.
    So what must not be lost is dealt with first and forgotten afterwards; at worst it is done twice.

One text, twice: this file runs as it stands, and compiled as `redlatch._c.wire.engine` with the types
of `ext/redlatch/_c/wire/engine.pxd`.

  * The one push that is understood says that a key which was looked at has changed; any other closes the connection.

Of a command (`protocol.commands`) it knows `yes` and `no`, the replies that are votes; `tells`, whether any other
number is to be kept, whether the master is to say when it changes, or whether it is a pulse; `payload(dialect)`, its
bytes for a server of that dialect; `releases`, whether it is a release that must not be forgotten; `token`, by which
such a release is owed; `since_ns`, when it was made, or of a release the first command of that token; `undo()`, what
undoes it when the client closes; and `again()`, what is sent instead behind what was sent since.

It is longer than a module should be: all that touches a FIFO stands in one place.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from hiredis import Reader

from ..protocol.ballot import Ballot
from ..protocol.commands import BY_SHA, FULL_TEXT, NO, OK, TIME, Command, Note, Pulse
from ..protocol.key import MAX_BYTES, MAX_SUFFIX
from ..protocol.policy import SECOND, UNBOUNDED, Clock
from . import net

# Above MAX_PENDING outstanding replies, or MAX_UNSENT unsent bytes, a master must answer MAX_PENDING / LEAST_SHARE
# commands (or all outstanding ones) within each STALL_NS, or its connection is closed. A master that accepts commands
# and answers hardly any must not fill the memory of the process. A master that is only busy may owe more.
MAX_PENDING = 65536
MAX_UNSENT = 4 << 20
STALL_NS = 1_000_000_000
LEAST_SHARE = 16  # 65,536 / 16: 4,096 replies a second

# Above these limits the connection is closed at once, even if the master is only busy. 512 tasks with a batch of 1,024
# names each wait for 524,288 replies and have 56 MB to send.
MOST_PENDING = 10 * MAX_PENDING
MOST_UNSENT = 32 * MAX_UNSENT

# After a quorum has voted, each missing master has SILENT_ROUNDS times the quorum's round time to vote, and at least
# SILENT_NS. Then it is suspected.
SILENT_ROUNDS = 4
SILENT_NS = 10_000_000

# A suspected master whose vote comes later than this after the suspicion had stopped. One that is earlier is far away.
FAR_NS = 250_000_000

# A master that answers so is a master no more, or has read another one's keys: it is asked anew who it is.
_REPLACED = ("READONLY", "LOADING")

# A master pushes once for each key that it was asked to track, and once for each flush. After this many pushes more
# than it was asked for, its connection is closed: a flood of pushes could keep this process busy.
PUSHES_AHEAD = 1024

# So many releases are owed to one master at most; beyond that the oldest are left to their ttl.
MAX_OWED = 4 * MAX_PENDING

# A longer line is no reply.
MAX_LINE = 65536

_NOTHING: Any = object()

# Nearly every reply is one of these lines (their \n is cut off): looking it up costs a third of asking the parser.
_LINES: dict[bytes, Any] = {b"+OK\r": OK, b":1\r": 1, b":0\r": 0, b"_\r": None, b"$-1\r": None}

# The push that says which key has changed (or all have), as far as the key's length; and how many bytes that takes.
_PUSH_BEGINS = b">2\r\n$10\r\ninvalidate\r\n"
_PUSH = re.compile(re.escape(_PUSH_BEGINS) + rb"(?:\*1\r\n\$(\d{1,3})\r\n|_\r\n|\*-1\r\n)")
_PUSH_BEGINS_BY = len(_PUSH_BEGINS) + len(b"*1\r\n$512\r\n")

# How a reply that is one line may begin: status, error, number, null, true or false, double, big number, RESP2's null.
# Everything else has a length field or is a push, and is never parsed: no length from the wire is believed.
_ONE_LINE = (b"+", b"-", b":", b"_", b"#", b",", b"(", b"$-1\r")


class Link:
    """One master's connection: its state, the ballots that wait for its replies, what it is owed."""

    def __init__(self, index: int, address: str) -> None:
        self.index = index
        self.address = address  # without credentials
        self.up = False  # connected; a link that is neither up nor being dialled votes "failed" at once
        self.dialling = True
        self.reader: Any = None
        self.tail = b""  # the beginning of a line whose end has not come yet
        self.pending: list[Any] = []  # ballots in the order of the commands sent; before `head` None
        self.head = 0
        self.pushes = 0  # how many more pushes are accepted
        self.parked: deque[Ballot] = deque()  # ballots that came while the connection is being made
        self.owed: dict[bytes, Any] = {}  # releases whose fate is unknown, by token
        self.traits: Any = None  # what the handshake learned: run_id, version, ...
        self.dialect = FULL_TEXT
        self.full_from = -1  # the first command that is sent in full since scripts turned out to be missing
        self.cause: BaseException | None = None  # why it is down
        self.lost_ns = -1  # when the last connection broke
        self.cut = 0  # ballots that were cut off before `pending`: with `head`, how many replies ever came
        self.watched: Any = None  # what the guard knows of it, and is told; None where there is no guard
        self.pulse: Any = None  # what it asks
        self.suspected = False  # whether its votes are no longer waited for
        self.missed = -1  # the number of the command whose vote was missing then; -1 once the vote has come
        self.missed_ns = 0  # when the master was suspected
        self.late_ns = 0  # how long after that the vote came; 0 if it came so late that the master must have stopped
        self.silent_ns = SILENT_NS  # the shortest silence that counts
        # Above the limit: how many replies must have come STALL_NS after `full_ns`, or the link counts as stopped.
        self.full_at, self.full_ns = -1, 0

    def __repr__(self) -> str:
        return f"<Link {self.address} {'up' if self.up else 'dialling' if self.dialling else 'down'}>"

    def owing(self) -> int:
        """Count the replies that have not come yet."""
        return len(self.pending) - self.head

    def advance(self) -> None:
        """Forget the oldest ballot: its reply came."""
        self.pending[self.head] = None
        self.head += 1
        if self.head == 256:  # now and then, what is done is cut off
            del self.pending[:256]
            self.cut += 256
            self.head = 0


class Fleet:
    """N links: submit a command to all, flush, pump the replies. One caller at a time."""

    def __init__(self, addresses: list[str], quorum: int, clock: Clock) -> None:
        self.clock = clock
        self.wires = net.Wires(len(addresses))
        self.links = [Link(index, address) for index, address in enumerate(addresses)]
        self.size = len(self.links)
        self.quorum = quorum
        self.decided: list[Ballot] = []  # ballots with a waiter, decided since the driver last looked
        self.lost: list[Ballot] = []  # releases without a waiter that were refused: their lock had been lost before
        self.fallen: list[tuple[Link, Any]] = []  # (link, its socket or None) that broke since the driver last looked
        self.changed: list[tuple[int, Any]] = []  # (index, key or None for all) that a master said has changed
        self.torn = False
        self.staged = False  # a reply made us stage something: flush
        self.resent = False  # whether a script was ever sent in full instead
        self.pulse_ns = UNBOUNDED  # when the next pulse is due
        self.suspects = 0  # how many links are suspected
        self.hurried: list[Ballot] = []  # ballots that a quorum has voted on, and that have no verdict yet
        self.hurry_ns = UNBOUNDED  # when the first of them is due (see `Ballot.hurry_ns`)
        self.round_ns = 0  # how long a quorum took to vote on the last such attempt; see `_spares`
        # Constants as fields: the compiled build knows the types of those.
        self.max_pending = MAX_PENDING
        self.max_unsent = MAX_UNSENT
        self.most_pending = MOST_PENDING
        self.most_unsent = MOST_UNSENT
        self.max_owed = MAX_OWED
        self.stall_ns = STALL_NS
        self.lines = _LINES
        self.note = Note()

    def submit(self, ballot: Ballot) -> None:
        """Stage the ballot's command on every link that it asks and that is up; the others park it or vote at once."""
        command = ballot.command
        self._begin()
        if command.since_ns >= self.pulse_ns:
            self._pulse(command.since_ns)
        dialect = -1
        payload = b""
        for link in self.links:
            if not ballot.asked >> link.index & 1:
                continue
            if link.up:
                if link.dialect != dialect:
                    dialect = link.dialect
                    payload = command.payload(dialect)
                if command.tells:
                    self._announce(link, command)
                self.wires.stage(link.index, payload)
                link.pending.append(ballot)
                full = link.owing() > self.max_pending or self.wires.unsent(link.index) > self.max_unsent
                if full and self._stalled(link):
                    self._drop(link, TimeoutError("the master accepts commands and answers too few of them"))
            elif link.dialling and len(link.parked) < self.max_pending:
                link.parked.append(ballot)
            else:
                # All or none: a SET that stayed parked would be sent without the release there was no room for.
                if link.dialling:
                    link.cause = TimeoutError("too many commands wait for the connection")
                    self._unpark(link)
                self._missed(link, ballot)
        if self.suspects and not ballot.decided and ballot.spares(self._suspects_of(ballot)):
            self._decide(ballot)
        self.torn = False
        if ballot.behind is not None:
            self.submit(ballot.behind)

    def flush(self) -> None:
        """Send what is staged, one system call a link."""
        self._begin()
        self.staged = False
        for index, error in self.wires.send():
            self._drop(self.links[index], error)
        self.torn = False

    def pump(self, timeout_ns: int) -> None:
        """Wait for replies for at most `timeout_ns` and count them."""
        self.mend()
        if self.hurried:
            timeout_ns = min(timeout_ns, max(0, self.hurry_ns - self.clock.now()))
        ready = self.wires.wait(timeout_ns)
        self.torn = True
        if ready:
            for link in self.links:
                data = self.wires.collect(link.index)
                if data is not None:
                    self._trust(link)
                    self._feed(link, data)
                    if link.missed >= 0:
                        self._heed(link)
        self.wires.taken = False
        if self.hurried:
            self._suspect(self.clock.now())
        self.torn = False

    def hurry(self) -> None:
        """Suspect masters that have been silent for too long; for drivers that run in an event loop."""
        self._begin()
        self._suspect(self.clock.now())
        self.torn = False

    def receive(self, index: int) -> None:
        """Count the replies that link `index` has now; for drivers that are told by an event loop."""
        self._begin()
        data = self.wires.receive(index)
        if data is not None:
            link = self.links[index]
            self._trust(link)
            self._feed(link, data)
            if link.missed >= 0:
                self._heed(link)
        self.torn = False

    def adopt(self, index: int, sock: Any, traits: Any, dialect: int, watched: Any = None) -> None:
        """Take a connection whose handshake is done; send what is owed, then what was parked.

        Args:
            watched: tells what to ask each second (`question`), and takes the answers (`beat`) and flushes
                (`flushed`): these return why the link is to be closed, or None.
        """
        link = self.links[index]
        self._begin()
        self.wires.attach(index, sock)
        link.tail = b""
        link.reader = Reader(notEnoughData=_NOTHING, replyError=traits.reply_error)
        link.traits = traits
        link.pushes = PUSHES_AHEAD
        link.watched = watched
        if watched is not None:
            link.pulse = Pulse(*watched.question())
            self.pulse_ns = min(self.pulse_ns, self.clock.now())  # which has the marker kept
        self._trust(link)
        link.dialect = dialect
        link.full_from = -1
        link.cause = None
        link.up = True
        link.dialling = False
        for command in link.owed.values():
            self._send_on(link, self.ballot_of(command))
        link.owed = {}  # not before: an interrupt may send a command twice, but loses none
        while link.parked:
            self._send_on(link, link.parked[0])
            link.parked.popleft()
        link.full_at = -1  # it is no sign of a stopped master that much was kept for it while it was away
        self.torn = False

    def fail(self, index: int, cause: BaseException) -> None:
        """Note that dialling link `index` failed: from now on it votes "failed" at once."""
        link = self.links[index]
        self._begin()
        link.cause = cause
        self._unpark(link)
        self.torn = False

    def _begin(self) -> None:
        """Begin an operation: what an interrupt left half done is mended first, and never taken for done."""
        if self.torn or self.wires.taken:
            self.mend()
        self.torn = True

    def mend(self) -> None:
        """Close every connection if an exception left an operation half done."""
        if self.torn or self.wires.taken:
            for link in self.links:
                link.up = link.up or self.wires.fileno(link.index) >= 0  # it was just being adopted
                if link.up:
                    self._drop(link, ConnectionAbortedError("interrupted in the middle of an operation"))
            self.wires.taken = False
            self.torn = False

    def give_up(self, ballot: Ballot) -> None:
        """Count all missing votes as failed, after an exception in `submit`: its owner tries again."""
        if not ballot.decided:
            struck = ConnectionAbortedError("interrupted before the command was sent")
            asked = [link.index for link in self.links if ballot.asked >> link.index & 1]
            ballot.causes = dict.fromkeys(asked, struck) | (ballot.causes or {})
            ballot.failed += ballot.missing()
            self._decide(ballot)
        if ballot.behind is not None:
            self.give_up(ballot.behind)

    def quorum_pushes(self) -> bool:
        """Tell whether enough masters for a quorum are connected and push changes of keys."""
        return bool(sum([link.up and link.traits.tracking for link in self.links]) >= self.quorum)

    def unanswered(self) -> bool:
        """Tell whether any reply has not come yet."""
        for link in self.links:
            if link.owing():
                return True
        return False

    def owing(self) -> int:
        """Count the replies to releases that have not come yet on links that have a socket.

        The garbage collector may have closed the sockets of a forgotten client before it is asked to linger.
        """
        links = [link for link in self.links if self.wires.fileno(link.index) >= 0]
        return sum([ballot.command.releases for link in links for ballot in link.pending[link.head :]])

    def linger(self, until_ns: int) -> None:
        """Wait until no release is unanswered; for a client that ends without being closed.

        A socket that is closed with unread bytes resets its connection, and the server then loses what it has not read.
        """
        self.flush()
        while self.owing() and (left := until_ns - self.clock.now()) > 0:
            self.pump(left)

    def abandon(self) -> None:
        """Send what undoes the commands that are not decided yet; for a client that closes under its callers."""
        undone: dict[bytes, Command] = {}
        for link in self.links:
            for ballot in [*link.pending[link.head :], *link.parked]:
                command = None if ballot.decided else ballot.command.undo()
                if command is not None:
                    undone[command.token] = command
                    ballot.withdraw()
        for command in undone.values():
            self.submit(self.ballot_of(command))
        self.flush()

    def blame(self, ballot: Ballot) -> None:
        """Note who has not answered a ballot whose time is over; it only reads, so any thread may call it."""
        waiting = [link for link in self.links if ballot in link.pending[link.head :] or ballot in link.parked]
        ballot.silent = tuple([link.index for link in waiting])

    def ballot_of(self, command: Command) -> Ballot:
        """Make a ballot on a command that nobody waits for."""
        return Ballot(command, self.size, self.quorum)

    def _spares(self, ballot: Ballot) -> bool:
        """Tell whether only suspected masters are missing from a ballot; else note when to suspect those missing."""
        if self.suspects and ballot.spares(self._suspects_of(ballot)):
            return True
        if not ballot.hurry_ns and ballot.spares(self.size):
            now = self.clock.now()
            if ballot.command.undo() is not None:  # an attempt: its command was made just before it was sent
                # The bound: one late reply must not make the client wait much longer for the next silent master.
                self.round_ns = min(now - ballot.command.since_ns, 2 * self.round_ns + SILENT_NS)
            patience = [link.silent_ns for link in self.links if not link.suspected and ballot.asked >> link.index & 1]
            ballot.hurry_ns = now + max(SILENT_ROUNDS * self.round_ns, max(patience, default=SILENT_NS))
            self.hurried.append(ballot)
            self.hurry_ns = min(self.hurry_ns, ballot.hurry_ns)
        return False

    def _suspects_of(self, ballot: Ballot) -> int:
        """Count the suspected masters that a ballot asks."""
        return sum([link.suspected and ballot.asked >> link.index & 1 for link in self.links])

    def _suspect(self, now_ns: int) -> None:
        """Suspect the masters missing from ballots that are due; decide ballots that only lack suspected masters."""
        waiting = [ballot for ballot in self.hurried if not ballot.decided]
        if self.hurry_ns <= now_ns:
            for link in self.links:
                if not link.suspected:
                    self._give_up(link, now_ns)
            for ballot in waiting:
                self._tally(ballot)
            waiting = [ballot for ballot in waiting if not ballot.decided and ballot.hurry_ns > now_ns]
        self.hurried = waiting
        self.hurry_ns = min([ballot.hurry_ns for ballot in waiting], default=UNBOUNDED)

    def _give_up(self, link: Link, now_ns: int) -> None:
        """Suspect a link if it has not voted on a ballot that is due. One pass finds out: it may owe many votes."""
        late = -1
        for at in range(link.head, len(link.pending)):
            ballot = link.pending[at]
            if 0 < ballot.hurry_ns <= now_ns and not ballot.decided:
                late = at
                break
        if late >= 0 and link.missed < 0:
            link.missed, link.missed_ns = link.cut + late, now_ns
        parked = [ballot for ballot in link.parked if 0 < ballot.hurry_ns <= now_ns and not ballot.decided]
        if late >= 0 or parked:
            link.suspected = True
            self.suspects += 1

    def _trust(self, link: Link) -> None:
        """End the suspicion of a link: its votes are waited for again."""
        if link.suspected:
            link.suspected = False
            self.suspects -= 1

    def _heed(self, link: Link) -> None:
        """Learn from a late vote how far away its master is: the smaller of its last two delays counts.

        So a single late vote does not make the client wait longer for that master when it stops.
        """
        if link.cut + link.head > link.missed:
            late_ns = self.clock.now() - link.missed_ns
            late_ns = link.silent_ns + late_ns if late_ns < FAR_NS else 0
            link.silent_ns = max(link.silent_ns, min(2 * min(link.late_ns, late_ns), 2 * FAR_NS))
            link.late_ns = late_ns
            link.missed = -1

    def _stalled(self, link: Link) -> bool:
        """Tell whether a link above its limit answers too few commands, or has reached the hard limit."""
        came, now, owing = link.cut + link.head, self.clock.now(), link.owing()
        if came >= link.full_at:
            link.full_at, link.full_ns = came + min(owing, max(1, self.max_pending // LEAST_SHARE)), now
        stopped = now - link.full_ns >= self.stall_ns
        return bool(stopped or owing > self.most_pending or self.wires.unsent(link.index) > self.most_unsent)

    def _pulse(self, now_ns: int) -> None:
        """Ask every link that is watched for its pulse; it is due again in a second."""
        self.pulse_ns = now_ns + SECOND
        for link in self.links:
            if link.up and link.watched is not None:
                ballot = self.ballot_of(link.pulse)
                ballot.until_ns = now_ns
                self._send_on(link, ballot)

    def _beat(self, link: Link, ballot: Ballot, answer: int) -> bool:
        """Tell of the answer to a pulse; False if the link had to be dropped."""
        cause = link.watched.beat(ballot.until_ns, self.clock.now(), answer)
        if cause is not None:
            self._drop(link, cause)
        return cause is None

    def _announce(self, link: Link, command: Command) -> None:
        """Have the master note the key of a question that follows, so that it pushes when the key has changed."""
        if command.tells == NO and link.traits.tracking:
            link.pushes += 1
            self.wires.stage(link.index, self.note.payload(link.dialect))
            link.pending.append(self.ballot_of(self.note))

    def _send_on(self, link: Link, ballot: Ballot) -> None:
        self._announce(link, ballot.command)
        self.wires.stage(link.index, ballot.command.payload(link.dialect))
        link.pending.append(ballot)

    def _feed(self, link: Link, data: Any) -> None:
        """Give bytes to the parser and each reply to the oldest ballot; or the link up.

        Longer than a function should be: the usual reply goes round this loop without a call.
        """
        if not link.up:
            return  # broken by an earlier event of the same round
        if type(data) is not bytes:  # an exception
            self._drop(link, data)
            return
        came: bytes = link.tail + data if link.tail else data
        start, size = 0, len(came)
        while start < size:
            if link.head < len(link.pending):  # the usual reply costs one comparison and makes no object
                ballot = link.pending[link.head]
                resent = self.resent and ballot.resent
                if not resent and self.wires.stands_at(came, start, ballot.command.yes_line):
                    start += len(ballot.command.yes_line)
                    link.advance()
                    ballot.yes += 1
                    self._tally(ballot)
                    continue
            if came[start : start + 1] == b">":
                end = self._push(link, came, start)
                if end == start:  # it is not complete, or the link is down now
                    break
                start = end
                continue
            end = came.find(b"\n", start)
            if end < 0:
                break
            line = came[start:end]
            start = end + 1
            reply = self.lines.get(line, _NOTHING)
            if reply is _NOTHING:
                reply = self._parse(link, line)
            if not self._count(link, reply):
                return
        if start == size:
            link.tail = b""
            return
        link.tail = came[start:]
        if link.tail[:1] not in b"+-:_#,($>" or len(link.tail) > MAX_LINE:
            self._drop(link, _unexpected(link, link.tail[:40], " and no end of line"))

    def _push(self, link: Link, came: bytes, start: int) -> int:
        """Take note of a push; return where it ends, or `start` while a part of it has not come yet.

        The parser is not asked: it would believe the lengths in it.
        """
        what = ", an unknown push"
        found = _PUSH.match(came, start)
        if found is None:
            rest = came[start:]
            if _PUSH_BEGINS.startswith(rest) or (rest.startswith(_PUSH_BEGINS) and len(rest) < _PUSH_BEGINS_BY):
                return start
        elif link.pushes <= 0:
            what = ", and pushes more than it was asked to"
        elif found[1] is None:
            link.pushes -= 1
            if self.changed[-1:] != [(link.index, None)]:  # one of several in a row is enough: it wakes every watcher
                self.changed.append((link.index, None))
            if link.watched is None:
                return found.end()
            self._drop(link, link.watched.flushed(self.clock.now()))
            return start
        elif int(found[1]) <= MAX_BYTES + MAX_SUFFIX:
            end = found.end() + int(found[1])
            if len(came) < end + 2:
                return start
            if came[end : end + 2] == b"\r\n":
                link.pushes -= 1
                self.changed.append((link.index, came[found.end() : end]))
                return end + 2
        self._drop(link, _unexpected(link, came[start : start + 40], what))
        return start

    def _parse(self, link: Link, line: bytes) -> Any:
        """Have the parser read a whole line; what is no reply of one line comes back as bytearray, which is no vote."""
        if not line.startswith(_ONE_LINE):
            return bytearray(line[:20])
        try:
            link.reader.feed(line + b"\n")
            reply = link.reader.gets()
        except Exception as error:  # hiredis.ProtocolError, and whatever else a parser may raise
            self._drop(link, error)
            return _NOTHING
        return bytearray(line[:20]) if reply is _NOTHING else reply

    def _count(self, link: Link, reply: Any) -> bool:
        """Give one reply to the oldest ballot of the link; False if the link is, or had to be, dropped."""
        if not link.up:
            return False
        if not link.owing():
            self._drop(link, _unexpected(link, reply, ", a reply that nobody asked for"))
            return False
        ballot = link.pending[link.head]
        command = ballot.command
        if reply is command.yes or (type(reply) is type(command.yes) and reply == command.yes):
            link.advance()
            ballot.yes += 1
            self._tally(ballot)
        elif reply is command.no or (type(reply) is type(command.no) and reply == command.no):
            link.advance()
            ballot.no += 1
            self._tally(ballot)
        elif command.tells and type(reply) is int:
            link.advance()
            if command.tells == TIME:
                return self._beat(link, ballot, reply)
            ballot.tell(link.index, reply, link.traits.tracking)
            self._tally(ballot)
        elif isinstance(reply, Exception):
            if link.watched is not None and str(reply).startswith(_REPLACED):
                self._drop(link, reply)
                return False
            link.advance()
            self._refused(link, ballot, reply)
        else:
            self._drop(link, _unexpected(link, reply))
            return False
        if self.resent and ballot.resent:
            self._stir(link, ballot)
        return True

    def _stir(self, link: Link, ballot: Ballot) -> None:
        """Tell of a change by a script that was sent in full behind questions that came after it: no master does."""
        if ballot.resent >> link.index & 1 and link.up and ballot not in link.pending[link.head :]:
            self.changed.append((link.index, ballot.command.key))

    def _refused(self, link: Link, ballot: Ballot, error: Exception) -> None:
        """Count an error reply as a failed vote; a script that is missing is sent in full instead."""
        bit = 1 << link.index
        in_full = link.dialect == FULL_TEXT and link.cut + link.head > link.full_from
        if not (ballot.resent & bit or in_full) and link.traits.lacks(error):
            # Only a script has another text, and it may go out again behind what was sent since; but not one that
            # acquires behind the release that undoes it.
            text = ballot.command.again().payload(FULL_TEXT)
            other = text != ballot.command.payload(BY_SHA)
            if other and self._undone(link, ballot.command):
                if link.dialect != FULL_TEXT:  # else it might be missed every time
                    link.dialect, link.full_from = FULL_TEXT, link.cut + len(link.pending)
            elif other:
                ballot.resent |= bit
                self.resent = True
                self.staged = True
                link.dialect = link.traits.downgrade(error, link.dialect)
                self.wires.stage(link.index, text)
                link.pending.append(ballot)
                if self.wires.unsent(link.index) > self.most_unsent:
                    self._drop(link, TimeoutError("too many scripts were missing to send them all again"))
                return
        if ballot.command.tells == TIME:  # the guard would see nothing
            self._drop(link, error)
        self._failed(link, ballot, error)

    def _undone(self, link: Link, command: Command) -> bool:
        """Tell whether what undoes a command was sent on this link already."""
        if command.undo() is None:
            return False
        since = link.pending[link.head :]
        return any([ballot.command.releases and ballot.command.token == command.token for ballot in since])

    def _failed(self, link: Link, ballot: Ballot, cause: Any) -> None:
        if ballot.causes is None:
            ballot.causes = {}
        ballot.causes[link.index] = cause
        ballot.failed += 1
        self._tally(ballot)

    def _unpark(self, link: Link) -> None:
        """Park nothing for a link any more; what was parked votes "failed"."""
        link.dialling = False
        self._trust(link)
        while link.parked:
            self._missed(link, link.parked[0])
            link.parked.popleft()

    def _owe(self, link: Link, command: Command) -> None:
        """Note a release for the link's next connection."""
        if len(link.owed) >= self.max_owed:
            link.owed.pop(next(iter(link.owed)))
        link.owed[command.token] = command

    def _missed(self, link: Link, ballot: Ballot) -> None:
        """Vote "failed" for a link that got nothing; owe it a release if it may hold the key."""
        command = ballot.command
        if command.releases and command.since_ns <= link.lost_ns:
            self._owe(link, command)
        self._failed(link, ballot, link.cause)

    def _tally(self, ballot: Ballot) -> None:
        if ballot.decided:
            return
        if ballot.settled():
            self._decide(ballot)
        elif (ballot.yes + ballot.no >= ballot.quorum or ballot.answers is not None) and self._spares(ballot):
            self._decide(ballot)

    def _decide(self, ballot: Ballot) -> None:
        ballot.decided = True
        if ballot.waiter is not None:
            self.decided.append(ballot)
        elif ballot.farewell is not None and ballot.refused():
            self.lost.append(ballot)

    def _drop(self, link: Link, cause: BaseException) -> None:
        """Close the link; what it had not answered counts as failed, and its releases are owed."""
        if not link.up:
            return
        link.cause = cause
        link.lost_ns = self.clock.now()
        link.missed = -1
        self._trust(link)
        while link.owing():
            ballot = link.pending[link.head]
            if ballot.command.releases:
                self._owe(link, ballot.command)
            self._failed(link, ballot, cause)
            link.advance()
        self.fallen.append((link, self.wires.detach(link.index)))
        link.reader = None
        link.dialling = True
        link.up = False  # last: until then an interrupted drop is begun again


def _unexpected(link: Link, reply: Any, what: str = "") -> ConnectionError:
    described = link.traits.described(reply)
    return ConnectionError(f"{link.address} answered with {described}{what}; the connection was closed")
