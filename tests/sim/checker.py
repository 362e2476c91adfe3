"""The rules: some hold in every schedule, others only without the faults under which locks make no promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redlatch.quorum.waiting.contention import BACKSTOP_NS
from redlatch.testing.memory.lua import Refusal, Status
from redlatch.votes import family_scripts, scripts
from redlatch.votes.units import quorum_of

from .grants import Grant, Permitted, certain, crowds, fences_back, overlaps
from .parts import PERMITS
from .world import MICROSECOND, MILLISECOND, World

if TYPE_CHECKING:
    from .master import Master

SKEW_NS = family_scripts.SKEW_US * MICROSECOND


def _token_places(*called: scripts.Script) -> dict[bytes, int]:
    """Return where calls of these scripts have the token, by text and by SHA: it is the first argument of each."""
    return {word: 3 + int(script.keys) for script in called for word in (script.text, script.sha)}


# The scripts that acquire.
_ACQUIRING = _token_places(
    scripts.ACQUIRE_FENCED,
    family_scripts.FAIR_ACQUIRE,
    family_scripts.READ_ACQUIRE,
    family_scripts.WRITE_ACQUIRE,
    family_scripts.SLOT_ACQUIRE,
    family_scripts.RATE_ACQUIRE,
)

# The scripts that release or undo.
RELEASING = _token_places(
    scripts.RELEASE,
    family_scripts.FAIR_RELEASE,
    family_scripts.FAIR_UNDO,
    family_scripts.READ_RELEASE,
    family_scripts.WRITE_RELEASE,
    family_scripts.SLOT_RELEASE,
)


class Checker:
    """Keeps the history of one schedule, and judges it.

    Args:
        masters: the number of masters.
        trusty: whether mutual exclusion is promised under the faults of the plan.
        fenced: whether fences are promised to increase.
        idle_ns: how long a lock may be free while a task waits for it; 0 means that there is no limit.
    """

    def __init__(self, world: World, masters: int, trusty: bool, fenced: bool, idle_ns: int) -> None:
        self._world = world
        self.quorum = quorum_of(masters)
        self._trusty = trusty
        self._fenced = fenced
        self._idle_ns = idle_ns
        # How much longer a fair lock may be free.
        self.fair_ns = 0
        # By name: the waiters, and since when each of them waits.
        self._waiting: dict[str, dict[object, int]] = {}
        # By name: the time of the last release.
        self._freed: dict[str, int] = {}
        # By key: the time until which a leftover value excludes others.
        self._blocked: dict[bytes, int] = {}
        # By token: the masters that ever granted its request.
        self._taken: dict[bytes, set[int]] = {}
        # By token: the name of its lock.
        self._names: dict[bytes, str] = {}
        self.grants: list[Grant] = []
        # By name: the acquires of rate limits.
        self.permits: dict[str, list[Permitted]] = {}
        # The tokens of all their attempts.
        self._permit_tokens: set[bytes] = set()
        # By (master, word): the connections on which the word arrived.
        self.heard: dict[tuple[int, bytes], set[object]] = {}
        # Each (master, token, connection) whose release was executed.
        self._undone: set[tuple[int, bytes, object]] = set()
        # Each (master, word) that may stay on the master until its ttl.
        self.stays: set[tuple[int, bytes]] = set()

    def executed(self, master: Master, words: list[bytes], reply: Any) -> None:
        """Record a command that a master has just executed."""
        for key in master.has_no_ttl():
            self._world.violate(f"master {master.index} has {key!r} without a ttl")
        index, name = master.voter, words[0].upper()
        script = words[1] if name in (b"EVAL", b"EVALSHA") else b""
        # A client answers NOSCRIPT with the whole script, so nothing stays because of it.
        if isinstance(reply, Refusal) and not str(reply).startswith("NOSCRIPT"):
            self._may_stay(master, words)
        elif name == b"SET":
            if isinstance(reply, Status):
                self._taken.setdefault(words[2], set()).add(index)
        elif script in (scripts.EXTEND.sha, scripts.EXTEND.text):
            if reply == 1 and master.keys.values.get(words[3]) != words[4]:
                self._world.violate(f"master {index} has extended {words[3]!r} for {words[4]!r}, who has it not")
            if words[3] in master.keys.made:
                self._world.violate(f"an extension has brought {words[3]!r} back on master {index}")
        elif script in _ACQUIRING and isinstance(reply, int):
            fenced = script in (scripts.ACQUIRE_FENCED.text, scripts.ACQUIRE_FENCED.sha)
            # The words that stay from now on are those of this grant.
            self.stays -= {(index, word) for word in words}
            token = words[_ACQUIRING[script]]
            if script in (family_scripts.RATE_ACQUIRE.text, family_scripts.RATE_ACQUIRE.sha):
                self._permit_tokens.add(token)
            if reply > 0 or (fenced and reply):
                self._taken.setdefault(token, set()).add(index)
                if (index, token, master.reading) in self._undone:
                    self._world.violate(f"{token!r} was acquired on master {index} behind its own release")
        elif script in RELEASING and not isinstance(reply, Refusal):
            self._undone.add((index, words[RELEASING[script]], master.reading))
        self._comes(master, words)

    def _comes(self, master: Master, words: list[bytes]) -> None:
        """Record a command; on a connection that the client gave up, it may arrive after the command that undoes it."""
        late = master.reads_what_was_given_up()
        for word in words:
            heard = self.heard.setdefault((master.voter, word), set())
            heard.add(master.reading)
            if late and len(heard) > 1:
                self._may_stay(master, [word])

    def _may_stay(self, master: Master, words: list[bytes]) -> None:
        """Record that a key which a command wrote, or should have undone, may stay until its ttl."""
        for word in words:
            self.stays.add((master.voter, word))
            self._blocked[word] = max(self._blocked.get(word, 0), master.end_of(word))

    def waits(self, name: str, who: object, since_ns: int) -> None:
        """Record that a task waits for a lock."""
        self._waiting.setdefault(name, {})[who] = since_ns

    def leaves(self, name: str, who: object) -> None:
        """Record that a task no longer waits."""
        self._waiting.get(name, {}).pop(who, None)

    def released(self, grant: Grant, now_ns: int) -> None:
        """Record that a lock was released in time."""
        self._freed[grant.name] = now_ns

    def _look_for_idleness(self, grant: Grant) -> None:
        freed, waiting = self._freed.pop(grant.name, -1), self._waiting.get(grant.name)
        if self._idle_ns and freed >= 0 and waiting:
            since = max(freed, min(waiting.values()), self._blocked.get(grant.name.encode(), 0))
            late = [ns for end, ns in self._world.stragglers if end > since]
            allowed = self._idle_ns + sum(late)
            # A ticket that arrived this late is changed afterwards.
            if grant.kind == "fair" and late and max(late) >= SKEW_NS:
                allowed += BACKSTOP_NS
            allowed += self.fair_ns if grant.kind == "fair" else 0
            idle = grant.start - since
            if idle > allowed:
                self._world.violate(f"{grant.name} was free for {idle / MILLISECOND:.3f} ms while somebody waited")

    def granted(self, grant: Grant, token: bytes) -> None:
        """Record a grant; check that a quorum of masters really granted this token, and no other lock has it."""
        self.grants.append(grant)
        self._look_for_idleness(grant)
        gave = self._taken.get(token, set())
        if len(gave) < self.quorum:
            self._world.violate(f"{grant.who} has {grant.name}, which only {sorted(gave)} gave: no quorum")
        if self._names.setdefault(token, grant.name) != grant.name:
            self._world.violate(f"{grant.name} and {self._names[token]} have one token")

    def permitted(self, name: str, acquire: Permitted) -> None:
        """Record an acquire of a rate limit."""
        self.permits.setdefault(name, []).append(acquire)

    def taken(self, token: bytes) -> set[int]:
        """Return the masters that ever granted a token's request."""
        return self._taken.get(token, set())

    def judge(self) -> None:
        """Check the whole history."""
        for grants in certain(self.grants).values():
            wrong = [*overlaps(grants, PERMITS)] if self._trusty else []
            wrong += fences_back(grants, self._trusty) if self._fenced else []
            for rule in wrong:
                self._world.violate(rule)
        undone = {token for _, token, _ in self._undone}
        kept = [t for t in self._permit_tokens - undone if len(self.taken(t)) >= self.quorum]
        had = sum(map(len, self.permits.values()))
        # With faults, an undo may reach no master.
        if self._idle_ns and len(kept) != had:
            self._world.violate(f"{had} permits were acquired, and {len(kept)} are not given back")
        for name, acquires in self.permits.items():
            for rule in crowds(acquires, PERMITS) if self._trusty else ():
                self._world.violate(f"{name}: {rule}")
