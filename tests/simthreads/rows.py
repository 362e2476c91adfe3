"""Rows 40, 41, 46 and 47 of `tests/FAULTS.md`: the text of 0.1.0 for functions that were fixed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        theme: the theme of the schedules that find it.
        rule: a part of the rule that they break.
        old: (file in src/redlatch, name of a function or class, its text in 0.1.0).
        imports: further imports for the first of these files.
    """

    name: str
    theme: str
    rule: str
    old: tuple[tuple[str, str, str], ...]
    imports: str = ""


def bring_back(row: Row, package: Path) -> None:
    """Put the old functions into a copy of the package."""
    for file, name, text in row.old:
        path = package / file
        source = path.read_text()
        node: ast.AST = ast.parse(source)
        for part in name.split("."):
            [node] = [found for found in node.body if getattr(found, "name", "") == part]  # type: ignore[attr-defined]
        lines = source.splitlines(keepends=True)
        lines[node.lineno - 1 : node.end_lineno] = [text]  # type: ignore[attr-defined]
        path.write_text("".join(lines))
    if row.imports:
        path = package / row.old[0][0]
        begin = "from __future__ import annotations\n"
        path.write_text(path.read_text().replace(begin, f"{begin}\n{row.imports}\n", 1))


_CALL_NEXT = '''\
    def _call_next(self, queue: WaitQueue, now_ns: int, backs_off: bool) -> bool:
        """Put the next in line at the head, and call it; False where nobody is left."""
        while True:
            entry = _next(queue)
            if entry is None:
                return False
            queue.move(now_ns)
            entry.backs_off = backs_off
            self.called.append(entry)
            self.heads[entry.hold.key] = entry.hold  # and no call until it is decided, too
            entry.decided = True
            _discard(queue, entry)
            if not entry.left or self.heads.get(entry.hold.key) is not entry.hold:  # else its owner has called nobody
                return True
'''

_HAND_OFF = '''\
    def hand_off(self, quorum: Quorum, hold: Hold, now_ns: int) -> bool:
        """Give the lease of a hold that is being released to the next in queue; tell whether somebody took it.

        Not when its tenure is over: other processes wait for it, too.
        """
        queue = self.by_key.get(hold.key)
        if queue is None or self.heads.get(hold.key) is not hold:
            return False
        # An extension may reach the masters behind the next one's own.
        busy = hold.extending is not None
        over = now_ns - hold.lease.since_ns >= quorum.tenure_ns or hold.lease.hand_offs >= quorum.tenure_count
        if busy or over or quorum.doubts.cover(hold.lease.asked_ns):
            return False
        entry = _next(queue)
        if entry is None or not hold.may_hand_off_to(entry.hold):
            return False
        queue.move(now_ns)
        lease = hold.lease.handed_off()
        self.called.append(entry)
        hold.state = HANDED_OFF  # no call from here to the end of these: an interrupt finds it ours, or theirs
        if hold.token_exposed:  # since we looked
            hold.state = RELEASING
            return False
        self.heads[hold.key] = entry.hold
        entry.giver = hold
        entry.lease = lease
        entry.decided = True
        _discard(queue, entry)
        if entry.left and entry.take() is not None:  # its owner has left while we gave it, and will not find it
            hold.state = RELEASING
            self.leave(entry.hold, now_ns, False)
            return False
        return True
'''

_CALL = """\
    def call(self, ballot: Ballot) -> None:
        ballot.yes = max(ballot.yes, ballot.quorum)  # so that a watch that begins only now ends at once
        if not ballot.decided:
            self.called.append(ballot)
            ballot.decided = True
"""

_LEADER_PROMOTE = '''\
    def promote(self) -> None:
        """Wake a sleeper to lead; if no thread sleeps, do what is left."""
        while self.sleepers:
            sleeper = self.sleepers.popleft()
            if sleeper.asleep and not sleeper.decided:
                sleeper.wake()
                return
        self._chain.wake_next()  # while no thread leads, each passes it on when it leaves
        if self.inbox or self._arrivals:
            self.serve()
'''

_CLOSE = '''\
    def close(self, *_: object) -> None:
        """Undo what is under way, wait a bounded time for the answers, then close every connection."""
        if self._lifecycle.closing:
            return
        leader = self._leader
        if leader.has_role():
            leader.refuse_nested()
        self._connections.retire()
        self._watchers.notify()
        if leader.fleet is None or self._lifecycle.forked:
            self._connections.close()
            return
        while not leader.take_role():
            leader.fleet.wires.wake()  # the leader sees that the client is closing, and leaves
            time.sleep(0.0005)
        try:
            leader.take_all()
            leader.fleet.abandon()
            self._wake_waiters()  # who leave the masters' queues
            until = self._clock.now() + DRAIN_NS
            while (owing := leader.fleet.owing()) or self._queues.everybody() or self._asking() or leader.inbox:
                left = until - self._clock.now()
                if left <= 0:
                    break
                leader.await_replies(left if owing else min(left, MILLISECOND))
                leader.take_all()
        finally:
            self._connections.close()
            leader.role.clear()
            self._chain.wake_all()
            while leader.sleepers:
                leader.sleepers.popleft().wake()
            self._wake_waiters()
            self._background.read_later()  # it ends,
            self._background.attend_by(0)  # when nothing is held any more
        self._connections.notify_lost()
'''

_DIALLER = '''\
class Dialler:
    """Dials masters that have no connection, each in a thread of its own that ends when it is reached.

    Args:
        masters: the masters, by index.
        timeout: seconds for one connect and for one handshake.
        ready: called in the dialling thread with (index, Connection).
        failed: called in the dialling thread with (index, exception), after every failed try.
        tracking: as for `dial`.
        connect: dials once.
    """

    def __init__(
        self,
        masters: list[Master],
        timeout: float,
        ready: Callable[[int, Connection], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
        connect: Callable[[Any, float, bool, Any], Connection] | None = None,
    ) -> None:
        self._masters = masters
        self._timeout = timeout
        self._ready = ready
        self._failed = failed
        self._tracking = tracking
        self._connect = connect or dial
        self._closed = threading.Event()

    def start(self, index: int, pause: float = 0.0, extension: HandshakeExtension | None = None) -> None:
        """Begin to dial master `index`, after `pause` seconds; `extension` as for `dial`."""
        if not self._closed.is_set():
            # Not threading.Thread, whose start() waits on an Event: Ctrl-C there may leave the Event locked.
            _thread.start_new_thread(self._run, (index, pause, extension))

    def close(self) -> None:
        """Have every dialling thread end after its current try; harmless when repeated."""
        self._closed.set()

    def _run(self, index: int, pause: float, extension: HandshakeExtension | None) -> None:
        while not self._closed.wait(pause * random.uniform(0.5, 1.0)):
            try:
                connection = self._connect(self._masters[index], self._timeout, self._tracking, extension)
            except Exception as error:  # whatever keeps a master from voting is that master's cause
                self._failed(index, error)
                extension = extension and extension.repeated()
            else:
                self._ready(index, connection)
                return
            pause = longer(pause)
'''

ROWS = (
    Row(
        "row_40_a_sleeper_is_woken_before_its_call_is_decided",
        "waiting",
        "never ended",
        (
            ("quorum/waiting/queues.py", "WaitQueues._call_next", _CALL_NEXT),
            ("quorum/waiting/queues.py", "WaitQueues.hand_off", _HAND_OFF),
            ("quorum/waiting/watches.py", "Watches.call", _CALL),
        ),
    ),
    Row(
        "row_41_two_threads_promote_the_last_sleeper",
        "waiting",
        "IndexError: pop from an empty deque",
        (("drivers/leader.py", "Leader.promote", _LEADER_PROMOTE),),
    ),
    Row(
        "row_46_close_waits_for_the_role_of_a_dead_thread",
        "shutdown",
        "interpreter's end never ended",
        (("drivers/closing.py", "Closing.close", _CLOSE),),
    ),
    Row(
        "row_47_a_fork_while_masters_are_dialled",
        "fork",
        "child never ended",
        (("wire/dial/connect.py", "Dialler", _DIALLER),),
        "import threading",
    ),
)
