"""The engine: send many commands at once on N connections, and count the votes that come back.

`submit` adds a command to the FIFO and the unsent bytes of each link; `flush` sends these bytes. `pump` and `receive`
read replies. `_feed` cuts them into lines, and `_count` counts each one as a vote on the oldest ballot of the link.
`_tally` checks whether the result is final. `_decide` then lists the ballot in `decided`, and the driver wakes its
waiter.

Rules:
  * The replies of one connection come in the order of its commands. So a reply always belongs to the oldest ballot in
    the link's FIFO, even if no caller waits for it any more.
  * Any unexpected reply closes the connection: a reply of another type, more replies than commands, or bytes that are
    not RESP. The open votes of the link then count as failed, never as yes or no.
  * The only accepted push is the invalidation of a tracked key, or of all keys.
  * Once a second, the engine sends a pulse ahead of a command that acquires or extends, and gives the reply to the
    link's monitor, which the guard provides. If the monitor objects to the reply, or to a push that the master was
    flushed, the engine closes the connection before it counts the votes that follow.
  * Under a guard, a vote that gives a key a ttl counts only if the master had stored this ttl before the first byte of
    the attempt left for any master. Until enough masters have stored it, the ballot is held (see `horizon`).
  * Attempts, releases and looks do not wait for a silent master (see `silence`).
  * A cluster is one master with several links. Each command goes to the link of its slot (see `routes`), and on from
    there if the node has lost the slot (see `redirects`).
  * With `synced`, a vote that takes or extends a lock counts once replicas have it (see `replication`).
  * After a quorum has extended a lock, its key is set again on each master that lacks it (see `quorum.repair`).
  * A release is never forgotten. A link owes a release if the connection broke before the reply came, or if the link
    was down when the release came. It sends the release first on its next connection; without one, the ttl ends the
    key. A master that has obeyed one copy says "no" to the next one, so the ballot and the command record where that
    may have happened (`unsent`, `tried`; see `quorum.outcome.refusers`).
  * An exception may leave an operation half done: in pure Python, Ctrl-C can strike anywhere. `torn` then stays set,
    and the next operation, or `recover`, closes every connection, since the FIFOs can no longer be trusted. So the
    engine deals with each item first and forgets it afterwards; at worst it does something twice.
"""

from __future__ import annotations

from typing import Any

from hiredis import Reader

from redlatch.wire.engine.horizon import coverage, covers, refusal, stores, uncovered
from redlatch.wire.engine.redirects import hand_over, redirect, resume, route, send_elsewhere
from redlatch.wire.engine.replication import Sync, until_of

from ...votes.ballot import Ballot
from ...votes.commands import (
    BY_SHA,
    COUNT,
    FULL_TEXT,
    KEPT,
    LACKS,
    NO,
    SIGNED,
    TIME,
    TRACKED,
    Asking,
    Command,
    CountReplicas,
    MarkElsewhere,
    Note,
    Pulse,
    Wait,
    read_pulse,
)
from ...votes.units import SECOND, UNBOUNDED, Clock
from . import net
from .link import Link
from .replies import NOTHING, USUAL, begins_line, parse_line, read_push
from .routes import Routes
from .silence import Silence

# Above MAX_PENDING outstanding replies, or MAX_UNSENT unsent bytes, a master must answer MAX_PENDING / LEAST_SHARE
# commands (or all outstanding ones) within each STALL_NS, as a master that is only busy does. Otherwise its connection
# is closed, since its backlog must not fill the memory of the process.
MAX_PENDING = 65536
MAX_UNSENT = 4 << 20
STALL_NS = 1_000_000_000
LEAST_SHARE = 16

# Above these limits the connection is closed at once. They leave room for 512 tasks with a batch of 1,024 names each,
# which wait for 524,288 replies and have 56 MB to send.
MOST_PENDING = 10 * MAX_PENDING
MOST_UNSENT = 32 * MAX_UNSENT

# A server answers READONLY if it has become a replica, and LOADING while it reads keys that may be those of another
# server. Under a guard the connection is then closed, and the next handshake examines the server again.
_REPLACED = ("READONLY", "LOADING")

# A master pushes once for each key that it was asked to track, and once for each flush. A link closes the connection
# after so many pushes too many: a flood of pushes could keep this process busy.
PUSHES_AHEAD = 1024

# No question reads more keys than this.
MOST_TRACKED = 2

# Above this number of owed releases, the oldest keys are left to their ttl.
MAX_OWED = 4 * MAX_PENDING


class Fleet:
    """N links, one for each master. Only one thread at a time may call its methods, unless a method says otherwise.

    Args:
        room: the number of links to prepare for (see `replace`).

    Attributes:
        decided: the ballots with a waiter that were decided since the driver last looked.
        lost: the refused releases without a waiter. Their locks may have been lost before.
        fallen: (link, its socket or None) of each link that broke since the driver last looked.
        changed: (voter, key or None for all keys) of each change that a master pushed; (voter, slots) of the slots of a
            cluster that went to another link, so that pushes may be lost.
        synced: how many replicas of each master must have a vote; -1 for all, 0 for none.
        routes: the routes of a cluster, which is then the only master; else None.
        torn: True while an operation is under way, or was left half done by an exception.
        staged: True if a reply made the fleet stage a command, so that the caller must flush.
        resent: True once a script was sent again in full.
        horizon_ms, raised_ns: the ttl that all connected links cover, 0 if they are fewer than a quorum; and since
            when.
        held: the ballots that wait until a quorum of links covers their ttl.
        stirs_held: True if a link has changed, so that held ballots may be sent.
    """

    def __init__(self, addresses: list[str], quorum: int, clock: Clock, guarded: bool = False, room: int = 0) -> None:
        self.clock = clock
        self.wires = net.Wires(max(room, len(addresses)))
        self.links = [Link(index, address) for index, address in enumerate(addresses)]
        self.size = len(self.links)
        self.silence = Silence(self.links, clock)
        self.quorum = quorum
        self.decided: list[Ballot] = []
        self.lost: list[Ballot] = []
        self.fallen: list[tuple[Link, Any]] = []
        self.changed: list[tuple[int, Any]] = []
        self.torn = False
        self.staged = False
        self.resent = False
        self.pulse_ns = UNBOUNDED
        self.guarded = guarded
        self.horizon_ms = 0 if guarded else UNBOUNDED
        self.raised_ns = -1
        self.replaced_ns = -1
        self.held: dict[Ballot, None] = {}
        self.stirs_held = False
        # Fields, because the compiled build knows their C types.
        self.max_pending = MAX_PENDING
        self.max_unsent = MAX_UNSENT
        self.most_pending = MOST_PENDING
        self.most_unsent = MOST_UNSENT
        self.max_owed = MAX_OWED
        self.stall_ns = STALL_NS
        self.routes: Routes | None = None
        self.synced = 0
        self._lines = USUAL
        self._note = Note()
        self._asking = Asking()

    # --- commands out ------------------------------------------------------------------------------

    def submit(self, ballot: Ballot) -> None:
        """Stage a command on each link that its ballot asks.

        A link that is being dialled parks the ballot. A link that is down votes "failed" at once; so does, for a ballot
        with a ttl, a link that does not cover it.
        """
        command = ballot.command
        self._begin()
        if command.since_ns >= self.pulse_ns:
            self._pulse(command.since_ns)
        if command.ttl_ms and (command.ttl_ms > self.horizon_ms or command.since_ns < self.raised_ns):
            if self._holds(ballot):
                self.torn = False
                return
            self._stage(ballot, self._covering(ballot))
        else:
            if self.held and command.releases:
                self._withdraw_held(command)
            self._stage(ballot, ballot.asked)
        if self.silence.suspects or ballot.behind is not None:
            self._end_submit(ballot)
        self.torn = False

    def _stage(self, ballot: Ballot, asked: int) -> None:
        if self.routes is not None:
            self.stage_routed(ballot)
            return
        command = ballot.command
        dialect = -1
        payload = b""
        for link in self.links:
            if not asked >> link.voter & 1:
                continue
            if self.synced and self._lags(link, ballot):
                continue
            if link.up:
                if link.dialect != dialect:
                    dialect = link.dialect
                    payload = command.payload(dialect)
                if command.meaning:
                    self._announce(link, command)
                self.wires.stage(link.index, payload)
                link.pending.append(ballot)
                if self._full(link) and self._stalled(link):
                    self.drop_link(link, TimeoutError("the master accepts commands but answers too few of them"))
            else:
                self.park(link, ballot)

    def stage_routed(self, ballot: Ballot) -> None:
        """Stage a command on the link that has the slot of its key."""
        assert self.routes is not None
        link = self.routes.link_of(ballot.command)
        if link is None or (ballot.command.releases and (self.routes.asked or self.routes.delayed)):
            send_elsewhere(self, link, ballot)
        else:
            self.send_routed(link, ballot)

    def send_routed(self, link: Link, ballot: Ballot) -> None:
        if self.synced and self._lags(link, ballot):
            return
        if link.up:
            self.send_on(link, ballot)
            if self._full(link) and self._stalled(link):
                self.drop_link(link, TimeoutError("the master accepts commands but answers too few of them"))
        else:
            self.park(link, ballot)

    def _lags(self, link: Link, ballot: Ballot) -> bool:
        """Fail a vote at once that the replicas of a link would not confirm; else note that it is about to be sent."""
        if link.sync is None or not ballot.command.lasts():
            return False
        cause = link.sync.refuses(self.clock.now())
        if cause is not None:
            self.fail_vote(link.voter, ballot, cause)
            return True
        link.sync.note(until_of(ballot))
        return False

    def send_asking(self, link: Link, ballot: Ballot) -> None:
        """Send a command for a slot that is on its way to this link.

        ASKING and CLIENT CACHING both count for the next command only, so the key is not tracked.
        """
        self._stage_asking(link)
        self.wires.stage(link.index, ballot.command.payload(link.dialect))
        link.pending.append(ballot)
        self.staged = True

    def _stage_asking(self, link: Link) -> None:
        self.wires.stage(link.index, self._asking.payload(link.dialect))
        link.pending.append(self.ballot_of(self._asking))

    def _end_submit(self, ballot: Ballot) -> None:
        if self.silence.suspects and not ballot.decided and self.silence.lacks_only_suspects(ballot):
            self._decide(ballot)
        self.torn = False
        if ballot.behind is not None:
            self.submit(ballot.behind)

    def park(self, link: Link, ballot: Ballot) -> None:
        if self.guarded and ballot.command.ttl_ms:
            ballot = self._copy_uncovered(link, ballot)
        if link.dialling and len(link.parked) < self.max_pending:
            ballot.unsent |= 1 << link.voter
            link.parked.append(ballot)
        else:
            # Drop all parked ballots, or a parked SET would be sent later without the release that found no room.
            if link.dialling:
                link.cause = TimeoutError("too many commands wait for a connection to the master")
                self._unpark(link)
            self._fail_unsent(link, ballot)

    def flush(self) -> None:
        self._begin()
        self.staged = False
        if self.synced:
            self._stage_waits()
        for index, error in self.wires.send():
            self.drop_link(self.links[index], error)
        self.torn = False
        if self.stirs_held:
            self._resume_held()
            self.flush()

    def _stage_waits(self) -> None:
        now = self.clock.now()
        for link in self.links:
            if link.up and link.sync is not None and link.sync.waits():
                counts, replicas, timeout_ms = link.sync.next_wait(now)
                if counts:
                    self.send_on(link, self.ballot_of(CountReplicas()))
                self.send_on(link, self.ballot_of(Wait(replicas, timeout_ms)))

    def _announce(self, link: Link, command: Command) -> None:
        """Make the master track the keys of a question, so that it pushes a change."""
        if command.meaning in (NO, TRACKED) and link.traits.tracking:
            link.pushes += MOST_TRACKED
            self.wires.stage(link.index, self._note.payload(link.dialect))
            link.pending.append(self.ballot_of(self._note))

    def send_on(self, link: Link, ballot: Ballot) -> None:
        self._announce(link, ballot.command)
        self.wires.stage(link.index, ballot.command.payload(link.dialect))
        link.pending.append(ballot)

    def _full(self, link: Link) -> bool:
        # As `Link.owing`, without a call.
        owing = len(link.pending) - link.head
        return owing > self.max_pending or self.wires.unsent(link.index) > self.max_unsent

    def _stalled(self, link: Link) -> bool:
        came, now, owing = link.cut + link.head, self.clock.now(), link.owing()
        if came >= link.full_at:
            link.full_at, link.full_ns = came + min(owing, max(1, self.max_pending // LEAST_SHARE)), now
        stopped = now - link.full_ns >= self.stall_ns
        return bool(stopped or owing > self.most_pending or self.wires.unsent(link.index) > self.most_unsent)

    def ballot_of(self, command: Command) -> Ballot:
        return Ballot(command, self.size, self.quorum)

    def fail_unsubmitted(self, ballot: Ballot) -> None:
        """Count all missing votes as failed, after an exception in `submit`. The submitter then tries again."""
        if not ballot.decided:
            self._fail_missing(ballot, ConnectionAbortedError("interrupted before the command was sent"))
        if ballot.behind is not None:
            self.fail_unsubmitted(ballot.behind)

    # --- replies in --------------------------------------------------------------------------------

    def pump(self, timeout_ns: int) -> None:
        self.recover()
        if self.silence.waiting:
            timeout_ns = min(timeout_ns, max(0, self.silence.due_ns - self.clock.now()))
        ready = self.wires.wait(timeout_ns)
        self.torn = True
        if ready:
            for link in self.links:
                data = self.wires.collect(link.index)
                if data is not None:
                    self._take(link, data)
        self.wires.taken = False
        if self.silence.waiting:
            self._suspect(self.clock.now())
        self.torn = False
        if self.stirs_held:
            self._resume_held()

    def receive(self, index: int) -> None:
        self._begin()
        data = self.wires.receive(index)
        if data is not None:
            self._take(self.links[index], data)
        self.torn = False
        if self.stirs_held:
            self._resume_held()

    def _take(self, link: Link, data: Any) -> None:
        if link.suspected:
            self.silence.trust(link)
        self._feed(link, data)
        if link.head > 256:
            link.cut_front()
        if link.missing_vote >= 0:
            self.silence.learn(link)

    def _feed(self, link: Link, data: Any) -> None:
        # An earlier event of the same round may have closed the link.
        if not link.up:
            return
        if type(data) is not bytes:
            self.drop_link(link, data)
            return
        came: bytes = link.tail + data if link.tail else data
        start, size = 0, len(came)
        while start < size:
            if link.head < len(link.pending):
                ballot = link.pending[link.head]
                command = ballot.command
                resent = self.synced or (self.resent and ballot.resent)
                if not resent and self.wires.stands_at(came, start, command.yes_line):
                    start += len(command.yes_line)
                    # As `Link.advance`, without a call.
                    link.head += 1
                    link.pending[link.head - 1] = None
                    ballot.yes += 1
                    command.obeyed |= command.releases << link.voter
                    self._tally(ballot)
                    continue
            if came[start : start + 1] == b">":
                end = self._push(link, came, start)
                # The push is not complete, or `_push` has dropped the link.
                if end == start:
                    break
                start = end
                continue
            end = came.find(b"\n", start)
            if end < 0:
                break
            line = came[start:end]
            start = end + 1
            reply = self._lines.get(line, NOTHING)
            if reply is NOTHING:
                reply = self._parse(link, line)
            if not self._count(link, reply):
                return
        if start == size:
            link.tail = b""
        else:
            self._keep_tail(link, came[start:])

    def _keep_tail(self, link: Link, tail: bytes) -> None:
        link.tail = tail
        if not begins_line(tail):
            self.drop_link(link, link.unexpected(tail[:40], " without an end of line"))

    def _push(self, link: Link, came: bytes, start: int) -> int:
        """Return where the push ends, or `start` if it is not complete or the link was dropped."""
        found = read_push(came, start)
        if found is None or (found[0] > start and link.pushes <= 0):
            what = ", an unknown push" if found is None else ", more pushes than expected"
            self.drop_link(link, link.unexpected(came[start : start + 40], what))
            return start
        end, key = found
        if end > start:
            link.pushes -= 1
            # One entry for several flushes in a row is enough, because it wakes every watcher.
            if key is not None or self.changed[-1:] != [(link.voter, None)]:
                self.changed.append((link.voter, key))
            if key is None and link.monitor is not None:
                self.drop_link(link, link.monitor.flushed(self.clock.now()))
                return start
        return end

    def _parse(self, link: Link, line: bytes) -> Any:
        try:
            return parse_line(link.reader, line)
        except Exception as error:
            self.drop_link(link, error)
            return NOTHING

    def _count(self, link: Link, reply: Any) -> bool:
        if not link.up:
            return False
        if not link.owing():
            self.drop_link(link, link.unexpected(reply, ", a reply to no command"))
            return False
        ballot = link.pending[link.head]
        command = ballot.command
        if self.synced and self._defers(link, command, reply):
            link.advance()
            link.sync.defer(ballot, reply)
            self.staged = self.staged or link.sync.waits()
            return True
        if reply is command.yes or (type(reply) is type(command.yes) and reply == command.yes):
            link.advance()
            ballot.yes += 1
            command.obeyed |= command.releases << link.voter
            self._tally(ballot)
        elif reply is command.no or (type(reply) is type(command.no) and reply == command.no):
            link.advance()
            ballot.no += 1
            if command.releases:
                self._note_refusal(link.voter, ballot)
            self._tally(ballot)
        elif not self._count_other(link, ballot, reply):
            return False
        if self.resent and ballot.resent:
            self._stir(link, ballot)
        return True

    def _defers(self, link: Link, command: Command, reply: Any) -> bool:
        """Return whether a reply is a vote that must wait for replicas. A "no" need not."""
        if link.sync is None or not command.lasts() or isinstance(reply, Exception):
            return False
        if reply is None or reply == command.no:
            return False
        return reply == command.yes or (type(reply) is KEPT[command.meaning] and command.expects(reply))

    def _take_count(self, link: Link, command: Command, number: int) -> None:
        """Take the number of replicas, or of those that have the last writes, and count the votes that waited."""
        if not isinstance(command, Wait):
            link.sync.counted(number)
            return
        votes, cause = link.sync.confirm(number, self.clock.now())
        for _ in range(votes):
            ballot, reply = link.sync.first()
            self._count_deferred(link, ballot, reply, cause)
            # `_count_deferred` may have dropped the link.
            if link.sync is None:
                return
            link.sync.forget_first()
        self.staged = self.staged or link.sync.waits()

    def _count_deferred(self, link: Link, ballot: Ballot, reply: Any, cause: Any) -> None:
        if cause is not None:
            self.fail_vote(link.voter, ballot, cause)
            return
        if reply == ballot.command.yes:
            ballot.yes += 1
            self._tally(ballot)
        else:
            self._count_answer(link, ballot, reply)
        if self.resent and ballot.resent:
            self._stir(link, ballot)

    def _count_other(self, link: Link, ballot: Ballot, reply: Any) -> bool:
        command = ballot.command
        if command.meaning == COUNT and type(reply) is int:
            link.advance()
            self._take_count(link, command, reply)
            return True
        if command.meaning == TIME and (found := read_pulse(reply)) is not None:
            link.advance()
            return self._beat(link, ballot, found[0], found[1])
        if type(reply) is KEPT[command.meaning] and command.expects(reply):
            link.advance()
            self._count_answer(link, ballot, reply)
            return True
        if not isinstance(reply, Exception):
            self.drop_link(link, link.unexpected(reply))
            return False
        replaced = link.monitor is not None and str(reply).startswith(_REPLACED)
        if replaced or link.traits.ends(reply):
            self.drop_link(link, reply)
            return False
        link.advance()
        self._refused(link, ballot, reply)
        return True

    def _note_refusal(self, voter: int, ballot: Ballot) -> None:
        ballot.refusers |= 1 << voter
        # A master that was sent nothing before has not obeyed the first copy that it has received.
        ballot.command.tried &= ~(ballot.unsent & 1 << voter)

    def _count_answer(self, link: Link, ballot: Ballot, reply: Any) -> None:
        command = ballot.command
        # A key is not tracked behind ASKING.
        asked = self.routes is not None and ballot in self.routes.asked
        ballot.count_answer(link.voter, reply, link.traits.tracking and not asked)
        if command.meaning == SIGNED:
            if command.releases and reply > 0:
                command.obeyed |= 1 << link.voter
            elif command.releases:
                self._note_refusal(link.voter, ballot)
            self._send_there(link, command.follow(reply))
        self._tally(ballot)
        # The vote has come after those of a quorum.
        if ballot.command.meaning == LACKS and ballot.decided:
            self._repair(link, ballot)

    def _refused(self, link: Link, ballot: Ballot, error: Exception) -> None:
        if self.routes is not None and redirect(self, link, ballot, error):
            return
        bit = 1 << link.voter
        in_full = link.dialect == FULL_TEXT and link.cut + link.head > link.full_from
        if not (ballot.resent & bit or in_full) and link.traits.lacks(error):
            # Only a script has another text. It may be sent again behind later commands, except for a script that
            # acquires: it must not follow the release that undoes it.
            text = ballot.command.again().payload(FULL_TEXT)
            other = text != ballot.command.payload(BY_SHA)
            if other and link.has_undone(ballot.command):
                # From now on scripts are sent in full. Otherwise the script could be missing at every attempt.
                if link.dialect != FULL_TEXT:
                    link.dialect, link.full_from = FULL_TEXT, link.cut + len(link.pending)
            elif other:
                ballot.resent |= bit
                link.dialect = link.traits.downgrade(error, link.dialect)
                self._resend(link, ballot, text)
                return
        if ballot.command.meaning == COUNT:
            # Votes of this connection would wait in vain.
            self.drop_link(link, error)
        # Without the replies to pulses the guard could not see that the master forgot locks.
        if ballot.command.meaning == TIME:
            link.refused_ns = self.clock.now()
            self.drop_link(link, error)
        self.fail_vote(link.voter, ballot, error)

    def _resend(self, link: Link, ballot: Ballot, text: bytes) -> None:
        self.resent = True
        self.staged = True
        if self.routes is not None and ballot in self.routes.asked:
            self._stage_asking(link)
        elif ballot.command.meaning:
            self._announce(link, ballot.command)
        self.wires.stage(link.index, text)
        link.pending.append(ballot)
        if self.wires.unsent(link.index) > self.most_unsent:
            self.drop_link(link, TimeoutError("too many calls of scripts must be resent in full"))

    def _stir(self, link: Link, ballot: Ballot) -> None:
        """Report the change by a script or ballot that was sent again.

        A server pushes no invalidation for changes by our own connection.
        """
        if self.routes is not None:
            self._stir_routed(link, ballot)
        elif ballot.resent >> link.voter & 1 and link.up and ballot not in link.pending[link.head :]:
            self.changed.append((link.voter, ballot.command.key))

    def _stir_routed(self, link: Link, ballot: Ballot) -> None:
        # The first test spares a search among thousands of commands whose slot has moved.
        if (ballot.decided and not ballot.command.releases) or not self._is_open(ballot):
            self.changed.append((link.voter, ballot.command.key))
            assert self.routes is not None
            self.routes.asked.pop(ballot, None)

    def _is_open(self, ballot: Ballot) -> bool:
        delayed = self.routes is not None and ballot in [each for _, each in self.routes.delayed]
        return delayed or any([link.waits_for(ballot) for link in self.links])

    def fail_vote(self, voter: int, ballot: Ballot, cause: Any) -> None:
        if ballot.causes is None:
            ballot.causes = {}
        ballot.causes[voter] = cause
        ballot.failed += 1
        self._tally(ballot)

    def _fail_missing(self, ballot: Ballot, cause: BaseException) -> None:
        asked = [link.voter for link in self.links if ballot.asked >> link.voter & 1]
        ballot.causes = dict.fromkeys(asked, cause) | (ballot.causes or {})
        ballot.failed += ballot.missing()
        self._decide(ballot)

    def _tally(self, ballot: Ballot) -> None:
        if ballot.decided:
            return
        if ballot.settled():
            self._decide(ballot)
        elif (ballot.yes + ballot.no >= ballot.quorum or ballot.answers is not None) and self.silence.spares(ballot):
            self._decide(ballot)

    def _decide(self, ballot: Ballot) -> None:
        ballot.decided = True
        if ballot.answers is not None and ballot.command.meaning == LACKS:
            for index in ballot.answers:
                self._repair(self.links[index], ballot)
        if ballot.waiter is not None:
            self.decided.append(ballot)
        elif ballot.released_lock is not None and ballot.refused():
            self.lost.append(ballot)
        elif ballot.behind is not None and ballot.refused():
            # A rival that just tries had the key there.
            self._repair(self.links[ballot.asked.bit_length() - 1], ballot.behind)

    def _repair(self, link: Link, ballot: Ballot) -> None:
        """Set the key of a held lock again on a master that lacks it, if a quorum has extended the lock.

        A release cannot have been sent yet: only this thread sends, and `Command.repair` has just found the lock held.
        """
        command = ballot.command
        covered = not self.guarded or covers(link, command.ttl_ms, command.since_ns)
        if ballot.yes < ballot.quorum or not link.up or not covered or self._full(link):
            return
        self._send_there(link, command.repair(link.voter, self.clock.now()), ballot)

    def _send_there(self, link: Link, command: Command | None, behind: Ballot | None = None) -> None:
        """Send a command, if there is one, to the master whose answer asks for it."""
        if command is not None and link.up and not self._full(link):
            ballot: Ballot = self.ballot_of(command)
            ballot.ask_only(link.voter, 0)
            ballot.behind = behind
            if self.routes is None:
                self.send_on(link, ballot)
            else:
                # The answer may have come from behind ASKING.
                self.stage_routed(ballot)
            self.staged = True

    def record_silent(self, ballot: Ballot) -> None:
        """Record which masters are silent on a ballot. Any thread may call this: it only reads."""
        if ballot in self.held:
            ttl_ms = ballot.command.ttl_ms
            silent = [link.voter for link in self.links if not stores(link, ttl_ms)]
        else:
            silent = [link.voter for link in self.links if link.waits_for(ballot)]
            if self.routes is not None:
                silent = [0] if self._is_open(ballot) else []
                # The node may have failed, and another one may have its slots.
                self.routes.source.refresh()
        # A ballot that was held has left no command on a link, so a second call finds nothing.
        ballot.silent = tuple(silent) or ballot.silent

    def hurry(self) -> None:
        self._begin()
        self._suspect(self.clock.now())
        self._end()

    def _suspect(self, now_ns: int) -> None:
        if self.silence.due_ns <= now_ns:
            for ballot in self.silence.suspect(now_ns):
                self._tally(ballot)
            self.stirs_held = bool(self.held)
        self.silence.forget(now_ns)
        if self.routes is not None and self.routes.delayed:
            resume(self, now_ns)

    # --- pulses and horizons (see `horizon`) -------------------------------------------------------

    def look(self) -> None:
        """Send a pulse on every link, because the horizons of the masters are needed now."""
        self._begin()
        self._pulse(self.clock.now())
        self.staged = True
        self.torn = False

    def _pulse(self, now_ns: int) -> None:
        self.pulse_ns = now_ns + SECOND
        for link in self.links:
            if link.up and link.monitor is not None:
                self._pulse_one(link, now_ns)

    def _pulse_one(self, link: Link, now_ns: int) -> None:
        ballot = self.ballot_of(link.pulse)
        ballot.until_ns = now_ns
        self.send_on(link, ballot)

    def _beat(self, link: Link, ballot: Ballot, server_us: int, horizon_ms: int) -> bool:
        now = self.clock.now()
        pulse: Any = ballot.command
        wanted_ms = pulse.wanted_ms
        cause = link.monitor.answered(ballot.until_ns, now, server_us, horizon_ms)
        if cause is None and horizon_ms < wanted_ms:
            cause = link.unexpected(horizon_ms, ", a horizon lower than the one that it was to store")
        if cause is not None:
            self.drop_link(link, cause)
            return False
        if link.raising is ballot:
            link.raising = None
            self.stirs_held = bool(self.held)
        # A horizon that another client has raised changes nothing here while ours is enough.
        if link.horizon_ms < wanted_ms:
            link.horizon_ms, link.raised_ns = horizon_ms, now
            self._survey()
        return True

    def _observe(self, link: Link, monitor: Any) -> None:
        """Begin to send pulses. In a guarded fleet, a link without a monitor never votes on a ttl."""
        if monitor is None:
            link.horizon_ms, link.refused_ns = 0, UNBOUNDED
            return
        now = self.clock.now()
        link.pulse = Pulse(*monitor.pulse())
        link.horizon_ms, link.raised_ns, link.raising = monitor.horizon_ms, now, None
        link.refused_ns = min(link.refused_ns, now)
        # The next command that acquires or extends sends a pulse, which renews the ttl of the marker.
        self.pulse_ns = min(self.pulse_ns, now)

    def _raise(self, link: Link, ttl_ms: int) -> None:
        """Have a master store a ttl, unless it has, must not, or is asked already."""
        if link.horizon_ms >= ttl_ms or (link.raising is not None and link.pulse.wanted_ms >= ttl_ms):
            return
        if refusal(link, ttl_ms) is not None:
            return
        key, identity, _ = link.monitor.pulse()
        link.pulse = Pulse(key, identity, ttl_ms)
        link.raising = ballot = self.ballot_of(link.pulse)
        ballot.until_ns = self.clock.now()
        self.send_on(link, ballot)
        self.staged = True

    def _survey(self) -> None:
        if self.guarded:
            up = [link for link in self.links if link.up]
            self.horizon_ms = min([link.horizon_ms for link in up]) if len(up) >= self.quorum else 0
            self.raised_ns = max([link.raised_ns for link in up], default=-1)
            self.stirs_held = bool(self.held)

    def _holds(self, ballot: Ballot) -> bool:
        """Hold a ballot while links may soon cover its ttl; fail it if too few can."""
        command = ballot.command
        if command.since_ns <= self.replaced_ns:
            # It may need the votes of another number of masters.
            self._fail_missing(ballot, ConnectionAbortedError("the client went over to other masters meanwhile"))
            return False
        # The first part of the attempt has left, so it is too late to wait for further links.
        if ballot.asked != -1 and not ballot.lone():
            return False
        now = self.clock.now()
        if self._awaits_horizons(ballot, now):
            self.held[ballot] = None
            return True
        command.since_ns = now
        # A link that was made since the attempt began has sent no pulse, and only a pulse renews the life of a marker.
        if now >= self.pulse_ns:
            self._pulse(now)
        return False

    def _awaits_horizons(self, ballot: Ballot, now_ns: int) -> bool:
        command = ballot.command
        found = coverage(self.links, command.ttl_ms, command.since_ns)
        for link in found.coming:
            if link.up:
                self._raise(link, command.ttl_ms)
        if len(found.ready) >= self.quorum:
            late = [link for link in found.coming if link.up and link.raising is not None and not link.suspected]
            for link in late:
                self.silence.watch(link.raising, link, now_ns)
            return bool(late)
        if len(found.ready) + len(found.coming) >= self.quorum:
            return True
        for link in () if ballot.lone() else found.lost:
            self.fail_vote(link.voter, ballot, uncovered(link, command))
        return False

    def _covering(self, ballot: Ballot) -> int:
        command = ballot.command
        asked = 0
        for link in () if ballot.decided else self.links:
            if ballot.asked >> link.voter & 1:
                if covers(link, command.ttl_ms, command.since_ns):
                    asked |= 1 << link.voter
                elif link.up:
                    self.send_on(link, self._copy_uncovered(link, ballot))
                else:
                    self.park(link, ballot)
        return asked

    def _copy_uncovered(self, link: Link, ballot: Ballot) -> Ballot:
        """Count a failed vote of a link that does not cover the ttl; return a ballot for the vote that does not count.

        The key still keeps others out there, and its vote may count when the lock is extended.
        """
        self.fail_vote(link.voter, ballot, uncovered(link, ballot.command))
        return self.ballot_of(ballot.command)

    def _resume_held(self) -> None:
        self.stirs_held = False
        now = self.clock.now()
        for ballot in list(self.held):
            if 0 < ballot.until_ns <= now and not ballot.decided:
                self.record_silent(ballot)
            # An interrupt after this line loses the ballot, and its submitter waits until its time is over. Otherwise
            # one master might have two votes.
            del self.held[ballot]
            if not ballot.decided and not 0 < ballot.until_ns <= now:
                self.submit(ballot)
        self.staged = True

    def _withdraw_held(self, release: Command) -> None:
        """Forget the held ballots that a release undoes: they must not be sent after it."""
        for ballot in list(self.held):
            if ballot.command.token == release.token and ballot.command.key == release.key:
                del self.held[ballot]

    # --- the nodes of a cluster --------------------------------------------------------------------

    def become_cluster(self, source: Any) -> None:
        """Route commands to the nodes of a cluster, which is the only master (see `Routes`)."""
        self.routes = Routes(source)
        self.size = self.quorum = 1

    def add_node(self, host: str, port: int, address: str) -> Link:
        """Return the link of a new node. A link keeps its index for good, even if its node leaves."""
        assert self.routes is not None
        link = Link(len(self.links), address, 0)
        self.wires.grow(link.index + 1)
        self.links.append(link)
        self.routes.links[host, port] = link
        return link

    def remove_node(self, host: str, port: int, cause: BaseException) -> None:
        """Close the connection to a node that has no slot any more. The commands that wait for it go to other nodes."""
        assert self.routes is not None
        link = self.routes.links.pop((host, port))
        self._begin()
        self.routes.remove(link)
        self.drop_link(link, cause)
        link.cause = cause
        self._unpark(link)
        hand_over(self, link)
        self._end()

    def mark_elsewhere(self, index: int) -> None:
        """Write the marker of a node under the key that its monitor names now: the slot of the former key has left."""
        link = self.links[index]
        if link.up and link.monitor is not None:
            now = self.clock.now()
            self._begin()
            self.send_on(link, self.ballot_of(MarkElsewhere(*link.monitor.marking_elsewhere(now))))
            self._observe(link, link.monitor)
            self._pulse_one(link, now)
            self.staged = True
            self._end()

    def route(self, ranges: list[tuple[int, int, int]], asked_ns: int) -> None:
        """Take over a topology (see `redirects.route`)."""
        self._begin()
        route(self, ranges, asked_ns)
        self._end()

    def lose_route(self, cause: BaseException) -> None:
        """Let commands fail whose slot has no node, because no topology can be read."""
        assert self.routes is not None
        self._begin()
        self.routes.cause = cause
        resume(self, UNBOUNDED)
        self._end()

    # --- connections -------------------------------------------------------------------------------

    def adopt(self, index: int, sock: Any, traits: Any, dialect: int, monitor: Any = None) -> None:
        """Take over a connection after its handshake; stage the releases that the link owes, then the parked commands.

        Args:
            monitor: the guard's monitor of the master, if the fleet is guarded. `answered` takes the replies to pulses,
                and `flushed` the flushes; both return why the link must be closed, or None.
        """
        link = self.links[index]
        self._begin()
        self.wires.attach(index, sock)
        link.tail = b""
        link.reader = Reader(notEnoughData=NOTHING, replyError=traits.reply_error)
        link.traits = traits
        link.pushes = PUSHES_AHEAD
        link.adopted_ns = self.clock.now()
        link.monitor = monitor
        self._observe(link, monitor)
        self.silence.trust(link)
        link.dialect = dialect
        link.full_from = -1
        link.sync = Sync(link.address, self.synced, traits.replicas, link.adopted_ns) if self.synced else None
        link.up, link.dialling = True, False
        waited = self._send_owed(link) if link.owed else ()
        # Cleared only now: an interrupt may make the link send a release twice, but never lose one.
        link.owed = {}
        while link.parked:
            if link.parked[0] not in waited:
                self.send_late(link, link.parked[0])
            link.parked.popleft()
        # Commands may have waited for the connection, not for a master that had stopped.
        link.full_at = -1
        if monitor is not None:
            self._raise(link, link.pulse.wanted_ms)
        self._survey()
        self._end()

    def _send_owed(self, link: Link) -> set[Ballot]:
        """Send the releases that the link owes; return the parked ballots that take the answers of some of them.

        Any other answer reaches no caller. Unless it is a "no", the "no" to a later copy may be the work of this one.
        """
        parked = {ballot.command: ballot for ballot in link.parked if ballot.command.releases}
        waited: set[Ballot] = set()
        for owed in link.owed.values():
            command = owed.command
            if owed.released_lock is not None:
                self.send_late(link, owed)
            elif command in parked:
                waited.add(parked[command])
                self.send_late(link, parked[command])
            else:
                self.send_late(link, self.ballot_of(command))
        return waited

    def send_late(self, link: Link, ballot: Ballot) -> None:
        """Send a ballot that has waited for the connection. A release records that: its caller may no longer wait."""
        if ballot.command.releases:
            bit = 1 << link.voter
            ballot.unsent = ballot.unsent & ~bit | ~ballot.command.tried & bit
            ballot.command.tried |= bit
        if link.sync is not None and ballot.command.lasts():
            link.sync.note(until_of(ballot))
        self.send_on(link, ballot)

    def fail(self, index: int, cause: BaseException) -> None:
        link = self.links[index]
        self._begin()
        link.cause = cause
        self._unpark(link)
        self._survey()
        self._end()

    def replace(self, addresses: list[str], quorum: int, cause: BaseException) -> None:
        """Switch to other masters. Commands under way fail, including those that were made before and come later."""
        self._begin()
        for link in self.links:
            self.drop_link(link, cause)
            link.cause = cause
            self._unpark(link)
        for ballot in list(self.held):
            if not ballot.decided:
                self._fail_missing(ballot, cause)
            del self.held[ballot]
        self.links = [Link(index, address) for index, address in enumerate(addresses)]
        self.size, self.quorum = len(addresses), quorum
        self.silence = Silence(self.links, self.clock)
        self.replaced_ns = self.clock.now()
        self._survey()
        self._end()

    def drop(self, index: int, cause: BaseException) -> None:
        self._begin()
        self.drop_link(self.links[index], cause)
        self._end()

    def drop_link(self, link: Link, cause: BaseException) -> None:
        if not link.up:
            return
        link.cause = cause
        link.lost_ns = self.clock.now()
        link.missing_vote = -1
        self.silence.trust(link)
        while link.owing():
            ballot = link.pending[link.head]
            if ballot.command.releases:
                ballot.command.tried |= 1 << link.voter
                link.owe(ballot, self.max_owed)
            if ballot.released_lock is None:
                self.fail_vote(link.voter, ballot, cause)
            link.advance()
        if link.sync is not None:
            for ballot in link.sync.ballots():
                self.fail_vote(link.voter, ballot, cause)
                link.sync.forget_first()
            link.sync = None
        if self.routes is not None:
            self.routes.forget(link)
        self.fallen.append((link, self.wires.detach(link.index)))
        link.reader = None
        link.dialling = True
        # Last: until this line, an interrupted drop starts again from the beginning.
        link.up = False
        self._survey()

    def _unpark(self, link: Link) -> None:
        link.dialling = False
        self.silence.trust(link)
        while link.parked:
            self._fail_unsent(link, link.parked[0])
            link.parked.popleft()

    def _fail_unsent(self, link: Link, ballot: Ballot) -> None:
        """Count a failed vote; keep a release if its master may hold the key."""
        command = ballot.command
        ballot.unsent |= 1 << link.voter
        # The slot of a cluster may have come from another link.
        if command.releases and (command.since_ns <= link.lost_ns or self.routes is not None):
            link.owe(ballot, self.max_owed)
            if ballot.released_lock is not None:
                return
        self.fail_vote(link.voter, ballot, link.cause)

    def quorum_pushes(self) -> bool:
        if self.routes is not None:
            return all([link.traits.tracking for link in self.links if link.up])
        return bool(sum([link.up and link.traits.tracking for link in self.links]) >= self.quorum)

    # --- interrupts, and the end of a client -------------------------------------------------------

    def _begin(self) -> None:
        """Begin an operation; repair an earlier one that an interrupt left half done."""
        if self.torn or self.wires.taken:
            self.recover()
        self.torn = True

    def _end(self) -> None:
        self.torn = False
        if self.stirs_held:
            self._resume_held()

    def recover(self) -> None:
        if self.torn or self.wires.taken:
            for link in self.links:
                # A link with a socket that is not up was interrupted in `adopt`.
                link.up = link.up or self.wires.fileno(link.index) >= 0
                if link.up:
                    self.drop_link(link, ConnectionAbortedError("interrupted during an operation; the link was closed"))
            self.wires.taken = False
            self._survey()
            self.torn = False

    def unanswered(self) -> bool:
        for link in self.links:
            if link.owing():
                return True
        return self.routes is not None and len(self.routes.delayed) > 0

    def owing(self) -> int:
        """Count releases without a reply; in a cluster also those that wait for a slot, or for a node that has come."""
        waiting = []
        if self.routes is not None:
            waiting = [ballot for _, ballot in self.routes.delayed]
            waiting += [ballot for link in self.links for ballot in link.parked]
        return self._unanswered_releases() + sum([ballot.command.releases for ballot in waiting])

    def _unanswered_releases(self) -> int:
        # The garbage collector may close the sockets before `await_answers` runs.
        links = [link for link in self.links if self.wires.fileno(link.index) >= 0]
        return sum([ballot.command.releases for link in links for ballot in link.pending[link.head :]])

    def await_answers(self, until_ns: int) -> None:
        """Wait until every release of a client that was not closed is answered.

        If a socket is closed with unread bytes, the system resets the connection, and the server loses the commands
        that it has not read.
        """
        self.flush()
        while self._unanswered_releases() and (left := until_ns - self.clock.now()) > 0:
            self.pump(left)
            if self.staged:
                self.flush()

    def abandon(self) -> None:
        undone: dict[tuple[bytes, bytes], Command] = {}
        delayed = [] if self.routes is None else [ballot for _, ballot in self.routes.delayed]
        unconfirmed = [link.sync.ballots() for link in self.links if link.sync is not None]
        open_ones = [[*link.pending[link.head :], *link.parked] for link in self.links]
        for waiting in [delayed, *unconfirmed, *open_ones]:
            for ballot in waiting:
                # Without a caller it is a repair or a copy (`_copy_uncovered`), and the lock may be held. If not, the
                # attempt is undone by its own ballot or its caller.
                command = None if ballot.decided or not ballot.until_ns else ballot.command.undo()
                if command is not None:
                    undone[command.key, command.token] = command
                    ballot.withdraw()
                    self._decide(ballot)
        for held in list(self.held):
            held.withdraw()
            del self.held[held]
        for command in undone.values():
            self.submit(self.ballot_of(command))
        self.flush()
