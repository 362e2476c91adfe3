"""What must hold, whatever happens; and what must hold while nothing happens that locks are not promised under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redlatch.protocol import family_scripts, scripts
from redlatch.protocol.contention import BACKSTOP_NS
from redlatch.protocol.policy import quorum_of

from .grants import Grant, certain, fences_back, overlaps
from .lua import Refusal, Status
from .plan import PERMITS
from .world import MICROSECOND, MILLISECOND, World

if TYPE_CHECKING:
    from .master import Master

SKEW_NS = family_scripts.SKEW_US * MICROSECOND

# Which scripts acquire, by text and by SHA; all take the token first.
_ACQUIRING = {
    word: script.keys
    for script in (
        scripts.ACQUIRE_FENCED,
        family_scripts.FAIR_ACQUIRE,
        family_scripts.READ_ACQUIRE,
        family_scripts.WRITE_ACQUIRE,
        family_scripts.SLOT_ACQUIRE,
    )
    for word in (script.text, script.sha)
}


class Checker:
    """Keeps the history of one schedule, and judges it.

    Args:
        masters: how many.
        trusty: whether mutual exclusion is promised under what happens.
        fenced: whether it is promised that fences go up.
        idle_ns: for how long a lock may be free while somebody waits for it; 0 is for ever.
    """

    def __init__(self, world: World, masters: int, trusty: bool, fenced: bool, idle_ns: int) -> None:
        self._world = world
        self.quorum = quorum_of(masters)
        self._trusty = trusty
        self._fenced = fenced
        self._idle_ns = idle_ns
        self._waiting: dict[str, dict[object, int]] = {}  # who waits for a name, and since when
        self._freed: dict[str, int] = {}  # when a name was released last
        self._blocked: dict[bytes, int] = {}  # by key: until when what stays there keeps others out
        self._taken: dict[bytes, set[int]] = {}  # by token: which masters ever gave it what it asked for
        self.grants: list[Grant] = []
        self.heard: dict[tuple[int, bytes], set[object]] = {}  # by (master, word): the connections on which it came
        self.stays: set[tuple[int, bytes]] = set()  # (master, word) of what may stay there until its ttl

    def executed(self, master: Master, words: list[bytes], reply: Any) -> None:
        """Take note of a command that a master has just executed."""
        for key in master.has_no_ttl():
            self._world.violate(f"master {master.index} has {key!r} without a ttl")
        index, name = master.index, words[0].upper()
        if isinstance(reply, Refusal) and not str(reply).startswith("NOSCRIPT"):  # which is sent in full then
            self._may_stay(master, words)
        elif name == b"SET":
            if isinstance(reply, Status):
                self._taken.setdefault(words[2], set()).add(index)
        elif name in (b"EVAL", b"EVALSHA") and words[1] in (scripts.EXTEND.sha, scripts.EXTEND.text):
            if reply == 1 and master.keys.values.get(words[3]) != words[4]:
                self._world.violate(f"master {index} has extended {words[3]!r} for {words[4]!r}, who has it not")
        elif name in (b"EVAL", b"EVALSHA") and words[1] in _ACQUIRING and isinstance(reply, int):
            keys = int(_ACQUIRING[words[1]])
            fenced = words[1] in (scripts.ACQUIRE_FENCED.text, scripts.ACQUIRE_FENCED.sha)
            self.stays -= {(index, word) for word in words}  # what stays now is of this one
            if reply > 0 or (fenced and reply):
                self._taken.setdefault(words[3 + keys], set()).add(index)
        self._comes(master, words)

    def _comes(self, master: Master, words: list[bytes]) -> None:
        """Take note of a command; one on a connection that was given up may come behind what undoes it."""
        late = master.reads_what_was_given_up()
        for word in words:
            heard = self.heard.setdefault((master.index, word), set())
            heard.add(master.reading)
            if late and len(heard) > 1:
                self._may_stay(master, [word])

    def _may_stay(self, master: Master, words: list[bytes]) -> None:
        """Take note that what a command has written, or should have undone, may stay until its ttl."""
        for word in words:
            self.stays.add((master.index, word))
            self._blocked[word] = max(self._blocked.get(word, 0), master.end_of(word))

    def waits(self, name: str, who: object, since_ns: int) -> None:
        """Take note that somebody waits for a lock."""
        self._waiting.setdefault(name, {})[who] = since_ns

    def leaves(self, name: str, who: object) -> None:
        """Take note that he waits no more."""
        self._waiting.get(name, {}).pop(who, None)

    def released(self, grant: Grant, now_ns: int) -> None:
        """Take note that a lock was released in time."""
        self._freed[grant.name] = now_ns

    def _look_for_idleness(self, grant: Grant) -> None:
        freed, waiting = self._freed.pop(grant.name, -1), self._waiting.get(grant.name)
        if self._idle_ns and freed >= 0 and waiting:
            since = max(freed, min(waiting.values()), self._blocked.get(grant.name.encode(), 0))
            late = [ns for end, ns in self._world.stragglers if end > since]
            allowed = self._idle_ns + sum(late)
            if grant.kind == "fair" and late and max(late) >= SKEW_NS:  # a ticket that came so late is to be changed
                allowed += BACKSTOP_NS
            idle = grant.start - since
            if idle > allowed:
                self._world.violate(f"{grant.name} was free for {idle / MILLISECOND:.3f} ms while somebody waited")

    def granted(self, grant: Grant, token: bytes) -> None:
        """Take note that somebody was told that it has a lock, by so many masters as really gave it this token."""
        self.grants.append(grant)
        self._look_for_idleness(grant)
        gave = self._taken.get(token, set())
        if len(gave) < self.quorum:
            self._world.violate(f"{grant.who} has {grant.name}, which only {sorted(gave)} gave: no quorum")

    def taken(self, token: bytes) -> set[int]:
        """Return the masters that ever gave a token what it asked for."""
        return self._taken.get(token, set())

    def judge(self) -> None:
        """Look through the whole history."""
        for grants in certain(self.grants).values():
            wrong = [*overlaps(grants, PERMITS)] if self._trusty else []
            wrong += fences_back(grants, self._trusty) if self._fenced else []
            for rule in wrong:
                self._world.violate(rule)
