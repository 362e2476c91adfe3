"""The mutants: what is replaced in which file, and whose bug that is (numbers and labels: `tests/FAULTS.md`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: what is wrong.
        source: where the bug is known from.
        file: in src/redlatch.
        old, new: the text to replace, which occurs exactly once, and its replacement; `old` is a regular expression if
            it begins with "(?ms)", for text that may change, such as a comment or a whole definition.
        foreign: whether the schedules are those of drop-ins.
        theme: the theme of the schedules that find it (`sim.themes.LATER`); "" for all themes.
        threads: the theme of the thread schedules that find it (`simthreads.drawing.THEMES`, or "any"); "" for a mutant
            that the asyncio schedules find.
    """

    name: str
    source: str
    file: str
    old: str
    new: str
    foreign: bool = False
    theme: str = ""
    threads: str = ""


BATCH, SEMAPHORE = "quorum/batch.py", "quorum/kinds/semaphore.py"
RATE_LIMIT = "locks/rate_limit.py"
EXTEND, RELEASE, HOLD = "quorum/extend.py", "quorum/release.py", "quorum/hold.py"
POLICY, QUORUM, BALLOT = "quorum/policy.py", "quorum/quorum.py", "votes/ballot.py"
COMMANDS, SCRIPTS, FAMILY_SCRIPTS = "votes/commands.py", "votes/scripts.py", "votes/family_scripts.py"
UNITS = "votes/units.py"
WAITING, UPKEEP, FAIR = "quorum/waiting/queues.py", "quorum/upkeep.py", "quorum/kinds/fair.py"
SCHEDULE, KEYS = "quorum/upkeep_schedule.py", "quorum/key_watch.py"
EVIDENCE, ACTIONS, GUARD_STATE, UNSURE = (
    "guard/evidence.py",
    "guard/actions.py",
    "guard/state.py",
    "guard/remaining_quarantine.py",
)
MOVER, HANDOVER = "operate/mover.py", "guard/handover.py"
GUARDED_MASTER, HORIZON = "guard/master.py", "wire/engine/horizon.py"
FOREIGN, OUTCOME, SHOWN = "quorum/kinds/foreign.py", "quorum/outcome.py", "compat/shared.py"
LOCK = "locks/lock.py"
LEASE, ATTEMPT, REPAIR = "quorum/lease.py", "quorum/attempt.py", "quorum/repair.py"
CONTENTION = "quorum/waiting/contention.py"
LINK = "wire/engine/link.py"
ROUTES, REDIRECTS = "wire/engine/routes.py", "wire/engine/redirects.py"
ENGINE, ACQUIRE, MULTI, REENTRANT = "wire/engine/fleet.py", "quorum/acquire.py", "locks/multi.py", "locks/reentrant.py"


def definition(name: str) -> str:
    """Return a regular expression that matches the whole definition of a script."""
    return rf"(?ms)^{name} = Script\(\n.*?^\)\n"


MUTANTS = (
    # --- validity --------------------------------------------------------------------------------------------
    Mutant(
        "no look at the clock after the votes",
        "36, 37, 44, rule 2",
        OUTCOME,
        "    if not won or now_ns >= deadline_ns or ",
        "    if not won or ",
    ),
    Mutant(
        "the ttl counts from the last vote",
        "32, 36, 50",
        ATTEMPT,
        "        hold.keep(now - self.started_ns)\n",
        "        hold.lease = hold.lease.until(now + quorum.validity_ns(self.ttl_ms))\n"
        "        hold.keep(now - self.started_ns)\n",
    ),
    Mutant(
        "no allowance for clocks that differ",
        "33, 50",
        QUORUM,
        "        return ttl_ms * 1_000_000 - drift_ns(ttl_ms, self.drift_factor)",
        "        return ttl_ms * 1_000_000",
    ),
    Mutant(
        "an extension that came too late counts",
        "17, 33, 37, D6",
        EXTEND,
        "            if ended >= limit or ballot.refused() or",
        "            if ballot.refused() or",
    ),
    Mutant(
        "an extension adds to what is left",
        "40, rule 4",
        EXTEND,
        "                hold.prolong(token, started, 0 if overtaken else deadline)\n",
        "                hold.prolong(token, started, max(hold.deadline_ns, limit) + quorum.validity_ns(ttl_ms))\n",
    ),
    # --- owners and quorums ----------------------------------------------------------------------------------
    Mutant(
        "half of the masters are a quorum",
        "50",
        UNITS,
        "    return masters // 2 + 1\n",
        "    return max(1, masters // 2)\n",
    ),
    Mutant(
        "a failed vote counts as a yes",
        "46",
        ENGINE,
        "        ballot.failed += 1\n",
        "        ballot.yes += 1\n",
    ),
    Mutant(
        "an answer of another type counts as a yes",
        "46, D14",
        ENGINE,
        "        elif reply is command.no or (type(reply) is type(command.no) and reply == command.no):\n"
        "            link.advance()\n            ballot.no += 1\n",
        "        elif reply is command.no or (type(reply) is type(command.no) and reply == command.no):\n"
        "            link.advance()\n            ballot.yes += reply is None\n            ballot.no += reply is not None\n",
    ),
    Mutant(
        "who is refused has the lock nevertheless",
        "9, 48",
        ACQUIRE,
        "        won: bool = self._hold.is_held()\n",
        "        won = True\n",
    ),
    Mutant(
        "release deletes whoever's key",
        "the specification of Redlock",
        SCRIPTS,
        """RELEASE = Script('if redis.call("get",KEYS[1])==ARGV[1] then""",
        """RELEASE = Script('if redis.call("get",KEYS[1]) then""",
    ),
    Mutant(
        "extend extends whoever's key",
        "45",
        SCRIPTS,
        """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end\nif redis.call("pttl",KEYS[1])<""",
        """if not redis.call("get",KEYS[1]) then return 0 end\nif redis.call("pttl",KEYS[1])<""",
    ),
    Mutant(
        "extend brings a lost key back",
        "23, 34, 39, D7",
        SCRIPTS,
        """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end\nif redis.call("pttl",KEYS[1])<""",
        """redis.call("set",KEYS[1],ARGV[1],"NX","PX",ARGV[2])\n"""
        """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end\nif redis.call("pttl",KEYS[1])<""",
    ),
    Mutant(
        "a lock without a ttl",
        "3, 4, 6",
        COMMANDS,
        "        return set_nx(self.key, self.token, self.ttl_ms)\n",
        '        return pack(b"SET", self.key, self.token, b"NX")\n',
    ),
    Mutant(
        "SET without NX",
        "10",
        COMMANDS,
        "        return set_nx(self.key, self.token, self.ttl_ms)\n",
        '        return pack(b"SET", self.key, self.token, b"PX", self.ttl_ms)\n',
    ),
    # --- nothing is left behind ------------------------------------------------------------------------------
    Mutant(
        "an attempt that is not won is not undone",
        "37, 44, 50, rule 3",
        ATTEMPT,
        "        if (refused and not (self.over and kind.signs_off)) or",
        "        if True or",
    ),
    Mutant(
        "a batch that is not won is not undone",
        "12, 44",
        BATCH,
        "    if undone:\n",
        "    if False:\n",
    ),
    Mutant(
        "a cancelled acquire leaves its key",
        "3, 20, 44",
        ACQUIRE,
        "            abandon(self._quorum, driver, self._hold, self._ticket)\n",
        "            leaves = self._hold.ticket is self._ticket\n            self._hold.free()\n            if leaves:\n"
        "                self._quorum.leave_queue(driver, self._hold)\n",
    ),
    Mutant(
        "what a broken connection owes is forgotten",
        "16, D1",
        LINK,
        "        owed[ballot.command.key, ballot.command.token] = ballot\n",
        "        pass\n",
    ),
    Mutant(
        "what came while a connection was broken is forgotten",
        "16, D1",
        ENGINE,
        "        if command.releases and (command.since_ns <= link.lost_ns or self.routes is not None):\n",
        "        if False:\n",
    ),
    Mutant(
        "a script that was flushed acquires behind its own release",
        "D1",
        ENGINE,
        "            if other and link.has_undone(ballot.command):\n",
        "            if False:\n",
    ),
    Mutant(
        "one name of many is kept where others were refused",
        "multi-lock",
        BATCH,
        "        if won:\n            yield Send([",
        "        if False:\n            yield Send([",
    ),
    Mutant(
        "the undo of a semaphore names the next slot",
        "own, issue 4",
        SEMAPHORE,
        "            self._next = self._any_of(quorum, free)\n",
        "            self._next = self._slot = self._any_of(quorum, free)\n",
    ),
    # --- replies ---------------------------------------------------------------------------------------------
    Mutant(
        "a new connection goes on with the old one's half reply",
        "8, D14",
        ENGINE,
        '        link.tail = b""\n        link.reader = Reader(',
        "        link.reader = Reader(",
    ),
    Mutant(
        "who has left takes his reply with him",
        "8",
        ENGINE,
        "        while link.owing():\n            ballot = link.pending[link.head]\n",
        "        while link.owing() > 1:\n            ballot = link.pending[link.head]\n",
    ),
    Mutant(
        "a half reply is dropped",
        "row 19",
        ENGINE,
        "        link.tail = tail\n",
        '        link.tail = b""\n',
    ),
    Mutant(
        "a quorum of all that answered, not of all",
        "D4",
        BALLOT,
        "        lost = self.size - self.quorum\n        if self.command.meaning and",
        "        lost = self.size - self.quorum - 1\n        if self.command.meaning and",
    ),
    Mutant(
        "rounds wait for silent masters",
        "row 42",
        BALLOT,
        "        if self.reopened or not 0 < self.missing() <= suspects:\n",
        "        if True:\n",
    ),
    Mutant(
        "one master less of those asked last",
        "50",
        BALLOT,
        "        ballot = new_ballot(self.command, size - 1, quorum - 1, until_ns)\n",
        "        ballot = Ballot(self.command, size - 1, max(1, quorum - 2), until_ns)\n",
    ),
    # --- waiting, and passing on -----------------------------------------------------------------------------
    Mutant(
        "a lease that is passed on counts as new",
        "33",
        CONTENTION,
        "    left = lease.deadline_ns - now\n    if wanted",
        "    left = wanted\n    hold.lease = lease = lease.until(now + wanted)\n    if wanted",
    ),
    Mutant(
        "who passes a lease on releases it, too",
        "D5",
        RELEASE,
        "            if self._handed_off():\n                self._rest = ENDED\n            return False\n",
        "            self._handed_off()\n            return False\n",
    ),
    Mutant(
        "who leaves the head calls nobody",
        "26, 27, 31",
        WAITING,
        "        queue = self.by_key.get(key)\n        if queue is not None and self._call_next(queue, now_ns, backs_off):\n"
        "            return\n",
        "        return\n",
    ),
    Mutant(
        "no look but by a push",
        "26, 27, row 32",
        CONTENTION,
        "    look.reopen(min(now_ns + left_ns + jitter, now_ns + longest_ns, until_ns))\n",
        "    look.reopen(until_ns)\n",
    ),
    # --- renewal and loss ------------------------------------------------------------------------------------
    Mutant(
        "a loss is not told",
        "22, 25, 30",
        SCHEDULE,
        "            self.lost.append((lock, term, reason))\n",
        "",
    ),
    Mutant(
        "a lock is renewed without end",
        "40, the specification of Redlock",
        UPKEEP,
        "            ttl_ms = min(ttl_ms, (self.began_ns + upkeep.max_hold_ns - now_ns) // MILLISECOND)\n",
        "            pass\n",
    ),
    Mutant(
        "a renewal looks for ever for what is due soon",
        "own, found by the simulator",
        SCHEDULE,
        "            heapq.heappop(self._heap)\n        due: list",
        "            heapq.heappop(self._heap)\n            self._push(entry[2])\n        due: list",
    ),
    Mutant(
        "a lock is renewed once",
        "own, found by a reader",
        SCHEDULE,
        "            term.renewing = False\n",
        "",
    ),
    # --- what holders hear -----------------------------------------------------------------------------------
    Mutant(
        "a loss reaches no on_lost",
        "row 69",
        LOCK,
        "                on_lost(self, reason)\n",
        "                pass\n",
    ),
    Mutant(
        "a loss is reported twice",
        "own, issue 39",
        LOCK,
        "                on_lost(self, reason)\n",
        "                on_lost(self, reason)\n                on_lost(self, reason)\n",
    ),
    Mutant(
        "check looks at the event and not at the clock",
        "row 72, etcd #19091",
        LOCK,
        "        if self.remaining() <= 0:\n            raise self._loss()\n",
        "        if self._upkeep is not None and self._upkeep.reason is not None:\n            raise self._loss()\n",
    ),
    Mutant(
        "an extension that a quorum refused is no loss",
        "own, issue 39",
        EXTEND,
        "            if ended >= limit or ballot.refused() or",
        "            if ended >= limit or",
    ),
    Mutant(
        "check knows nothing of the loss that an extension has found",
        "own, issue 39",
        EXTEND,
        "                hold.shorten(token, min(limit, ended))\n",
        "",
    ),
    # --- fences ----------------------------------------------------------------------------------------------
    Mutant(
        "a number that is as high as the last counts",
        "fences",
        SCRIPTS,
        "if tonumber(ARGV[3])<=c then\n",
        "if tonumber(ARGV[3])<c then\n",
    ),
    Mutant(
        "numbers are not kept on the masters",
        "fences",
        SCRIPTS,
        """redis.call("set",KEYS[2],ARGV[4],"PX",{FENCE_IDLE_MS})\nreturn tonumber(ARGV[3])""",
        """return tonumber(ARGV[3])""",
    ),
    Mutant(
        "a lease passed on keeps its number",
        "fences",
        LEASE,
        "        lease.fence += 1\n",
        "",
    ),
    # --- the family ------------------------------------------------------------------------------------------
    Mutant(
        "readers do not look for a writer",
        "row 30",
        FAMILY_SCRIPTS,
        ""","+inf")>0 or is_in("w") then return 0 end""",
        ""","+inf")>0 then return 0 end""",
    ),
    Mutant(
        "a slot that is taken is given once more",
        "semaphores counted on each master",
        FAMILY_SCRIPTS,
        "if not is_in(ARGV[3]) then\n",
        "if true then\n",
    ),
    Mutant(
        "a fair lock's place has no ttl",
        "6, 26",
        FAMILY_SCRIPTS,
        """if queue then redis.call("pexpire",KEYS[2],ms*2) end\n""",
        "",
    ),
    Mutant(
        "who leaves a fair lock's queue leaves its place",
        "26",
        FAMILY_SCRIPTS,
        """or "1e300")<=tonumber(ARGV[3]) then leave(me) end\n""",
        """or "1e300")<=tonumber(ARGV[3]) then end\n""",
    ),
    Mutant(
        "a release does not ring the bell that it was given",
        "bells",
        FAMILY_SCRIPTS,
        """redis.pcall("set",KEYS[i+1],"c","PX",{RINGS_MS})\nreturn answer""",
        "return answer",
    ),
    Mutant(
        "a release does not say whose bell must ring",
        "bells",
        FAMILY_SCRIPTS,
        "return mine and tonumber(first) or -tonumber(first)",
        "return answer",
        theme="stopped",
    ),
    Mutant(
        "the first waiter does not watch the lock",
        "bells",
        FAIR,
        "            command = LookAsFirst(key, self._bell)\n",
        "            pass\n",
    ),
    Mutant(
        "no bell rings that an answer names",
        "bells",
        ENGINE,
        "            self._send_there(link, command.follow(reply))\n",
        "",
        theme="stopped",
    ),
    Mutant(
        "an inner release of a re-entrant lock releases it",
        "rlock",
        REENTRANT,
        "        if count > 1:\n            self._held[weakref.ref(owner)] = lock, count - 1\n            return None\n",
        "        if count > 2:\n            self._held[weakref.ref(owner)] = lock, count - 1\n            return None\n",
    ),
    # --- extensions that may shorten, as in 0.1.0 ------------------------------------------------------------
    Mutant(
        "a late extension shortens a lock",
        "row 39",
        SCRIPTS,
        definition("EXTEND"),
        """EXTEND = Script(
    'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end'
)
""",
    ),
    Mutant(
        "a late extension shortens a reader's entry",
        "row 39",
        FAMILY_SCRIPTS,
        definition("READ_EXTEND"),
        '''READ_EXTEND = Script(
    _IN
    + """redis.call("zremrangebyscore",KEYS[1],"-inf",now)
if not is_in(ARGV[1]) then return 0 end
stay(KEYS[1],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
return 1""",
    keys=3,
)
''',
    ),
    Mutant(
        "a late extension shortens a writer's lock",
        "row 39",
        FAMILY_SCRIPTS,
        definition("WRITE_EXTEND"),
        '''WRITE_EXTEND = Script(
    _NOW
    + """if redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[2],ARGV[2])
local new=stay(KEYS[1],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
if new then redis.call("pexpire",KEYS[1],ARGV[2]) end
return 1""",
    keys=3,
)
''',
    ),
    Mutant(
        "a late extension shortens a permit",
        "row 39",
        FAMILY_SCRIPTS,
        definition("SLOT_EXTEND"),
        '''SLOT_EXTEND = Script(
    _IN
    + """if redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] or not is_in(ARGV[2]) then return 0 end
redis.call("pexpire",KEYS[2],math.max(redis.call("pttl",KEYS[2]),tonumber(ARGV[3])))
stay(KEYS[1],ARGV[3])
redis.call("zadd",KEYS[1],now+ARGV[3],ARGV[2])
return 1""",
    keys=2,
)
''',
    ),
    # --- the guard -------------------------------------------------------------------------------------------
    Mutant(
        "a master that has lost its marker is taken for new",
        "K2, row 3: all",
        ACTIONS,
        """    _quarantine(state, case, "it has lost its marker, and maybe locks")
    marker = state.new_marker(master, report, state.longest_ms)
    known = master.marker or state.known_marker()
""",
        "    marker, known = state.new_marker(master, report, 0), None\n",
    ),
    Mutant(
        "a flush is ignored",
        "row 33: all",
        ENGINE,
        "            if key is None and link.monitor is not None:\n",
        "            if False:\n",
    ),
    Mutant(
        "a master is kept out for half of the longest ttl",
        "K2",
        GUARD_STATE,
        "        return ttl_ms * MILLISECOND + drift_ns(",
        "        return ttl_ms * MILLISECOND // 2 + drift_ns(",
    ),
    Mutant(
        "what others have seen a master forget is not believed",
        "K2",
        EVIDENCE,
        "    return MarkerState.FORGETFUL if marker.out else MarkerState.INTACT\n",
        "    return MarkerState.INTACT\n",
    ),
    # --- horizons ----------------------------------------------------------------------------------------------
    Mutant(
        "a permit that came too late counts",
        "own, issue 40",
        RATE_LIMIT,
        "        if hold.elapsed_ns <= slack_ns:\n",
        "        if True:\n",
        theme="limiting",
    ),
    Mutant(
        "a permit lives for the period, not for the attempt, too",
        "own, issue 40",
        RATE_LIMIT,
        "        counted_ms = self._period_ms + -(-slack_ns // MILLISECOND)\n",
        "        counted_ms = self._period_ms\n",
        theme="limiting",
    ),
    Mutant(
        "a master votes on a ttl that it has not stored",
        "G3",
        HORIZON,
        "    return bool(link.up and link.horizon_ms >= ttl_ms)\n",
        "    return bool(link.up)\n",
        theme="mixing",
    ),
    Mutant(
        "a forgetful master is kept out for the default ttl",
        "G4",
        UNSURE,
        "        sure = replace(marker, out=horizon + since_ms,",
        "        sure = replace(marker, out=min(horizon, state.default_ttl_ms) + since_ms,",
        theme="mixing",
    ),
    Mutant(
        "one witness says how long a master is kept out",
        "G4",
        GUARD_STATE,
        "        needed = len(self.masters) - quorum_of(len(self.masters)) + 1\n",
        "        needed = 1\n",
        theme="witnessing",
    ),
    Mutant(
        "a horizon is lowered by a client with a shorter ttl",
        "G2",
        SCRIPTS,
        """if w>h then redis.call(""",
        """if true then redis.call(""",
        theme="mixing",
    ),
    Mutant(
        "what the others said before a master was found to have forgotten counts",
        "G4",
        GUARDED_MASTER,
        "self.asked_ns > after_ns and",
        "",
        theme="mixing",
    ),
    # --- a single master -----------------------------------------------------------------------------------------
    Mutant(
        "a lease in doubt is verified by a look at its token",
        "R2: GET instead of compare-and-PEXPIRE",
        EXTEND,
        "    ballot = quorum.ballot(Extension(quorum, hold, ttl_ms, started), until)\n",
        "    command = Extension(quorum, hold, ttl_ms, started)\n"
        "    if quorum.doubts.cover(lease.asked_ns, hold.key):\n"
        "        command = hold.kind.owned(hold.key, lease)\n"
        "        command.since_ns, command.ttl_ms = started, ttl_ms\n"
        "    ballot = quorum.ballot(command, until)\n",
        theme="alone",
    ),
    Mutant(
        "a lease in doubt counts",
        "R2",
        "locks/lock.py",
        "        if hold.state != HELD or doubted or",
        "        if hold.state != HELD or",
        theme="alone",
    ),
    Mutant(
        "a number of a fenced lock does not exceed the time of the marker",
        "FE1",
        POLICY,
        "        return max(wall, (wall + marked) // 2 + FENCE_LEAD_US if marked else 0)\n",
        "        return max(wall, 0 * marked)\n",
        theme="skewed",
    ),
    Mutant(
        "a master that failed over and back is trusted although it forgets soon",
        "row 50",
        EVIDENCE,
        r"(?ms)^    return marker\.origin\(\)\[0\] == now and not report\.promoted.*?$",
        "    return marker.origin()[0] == now and not report.promoted",
    ),
    # --- votes that come back --------------------------------------------------------------------------------------
    Mutant(
        "a held lock never gets back a vote",
        "row 73",
        ENGINE,
        "        self._send_there(link, command.repair(link.voter, self.clock.now()), ballot)\n",
        "",
        theme="rolling",
    ),
    Mutant(
        "a repair that met a rival is not sent again",
        "row 73",
        ENGINE,
        "        elif ballot.behind is not None and ballot.refused():\n",
        "        elif False:\n",
        theme="rolling",
    ),
    Mutant(
        "a key is set again behind its release",
        "row 73",
        REPAIR,
        "        if hold.state != HELD or lease.token is not self.token or",
        "        if lease.token is not self.token or",
        theme="repairing",
    ),
    # --- handovers -----------------------------------------------------------------------------------------------
    Mutant(
        "a handover does not wait for the locks on the old masters",
        "M3",
        MOVER,
        "            wait_ns = self._wait_ns(left)\n",
        "            wait_ns = 0 * self._wait_ns(left)\n",
        theme="moving",
    ),
    Mutant(
        "a handover leaves one of the old masters out",
        "M2: tombstones on a quorum only",
        MOVER,
        "| every(others, self._leave)",
        "| every(others[:-1], self._leave) | every(others[-1:], self.markers.read)",
        theme="moving",
    ),
    Mutant(
        "a master soon forgets that it was left",
        "M2: tombstones with a ttl",
        HANDOVER,
        "LEFT_KEPT_MS = 3_155_760_000_000\n",
        "LEFT_KEPT_MS = 3000\n",
        theme="moving",
    ),
    # --- clusters ------------------------------------------------------------------------------------------------
    Mutant(
        "a redirect is a vote",
        "own: MOVED counts as a no",
        ENGINE,
        "        if self.routes is not None and redirect(self, link, ballot, error):\n            return\n",
        "        if self.routes is not None and redirect(self, link, ballot, error):\n"
        "            ballot.no += 1\n"
        "            self._tally(ballot)\n"
        "            return\n",
        theme="slots",
    ),
    Mutant(
        "an undo goes to the new owner of its slot only",
        "own",
        ROUTES,
        "        if self._left and command.releases:\n",
        "        if False:\n",
        theme="slots",
    ),
    Mutant(
        "each lock asks for the topology",
        "redisson #1577",
        "wire/dial/topology.py",
        "        if self._unstarted and not self._closed:\n",
        "        self._unstarted.append(None)\n        if not self._closed:\n",
        theme="slots",
    ),
    Mutant(
        "a delayed acquire is sent after its undo",
        "own",
        REDIRECTS,
        "        _withdraw(fleet, ballot.command)\n",
        "",
        theme="slots",
    ),
    Mutant(
        "ASK changes the table",
        "the specification of Redis Cluster",
        REDIRECTS,
        "        fleet.routes.asked[ballot] = target\n",
        "        fleet.routes.asked[ballot] = target\n"
        "        fleet.routes.move(slot_of(ballot.command.key), target, fleet.clock.now())\n",
        theme="slots",
    ),
    Mutant(
        "MOVED changes nothing until the topology is read",
        "redirects without a cache",
        REDIRECTS,
        "        routes.move(slot, target, fleet.clock.now())\n",
        "",
        theme="slots",
    ),
    Mutant(
        "a release is forgotten when its node leaves",
        "own",
        REDIRECTS,
        "    for which, ballot in list(link.owed.items()):\n",
        "    for which, ballot in ():\n",
        theme="nodes",
    ),
    Mutant(
        "a promotion raises no doubt",
        "Redis Cluster loses the last writes of a primary",
        "drivers/cluster.py",
        "                    self._doubts.add(until_ns + 1, index)\n",
        "",
        theme="shards",
    ),
    Mutant(
        "no waiter is called when its slot has moved",
        "sage #205",
        REDIRECTS,
        "        fleet.changed.append((link.voter, frozenset([slot])))\n",
        "",
        theme="waking slots",
    ),
    # --- the drop-ins' locks -----------------------------------------------------------------------------------
    Mutant(
        "a lease whose token was read is handed off",
        "redis-py's hand-over to a worker",
        SHOWN,
        "    hold.token_exposed = True\n    if hold.key in shared.quorum.queues.by_key",
        "    if hold.key in shared.quorum.queues.by_key",
        foreign=True,
    ),
    Mutant(
        "a forgotten script undoes the next attempt of a chosen token",
        "3, 33",
        FOREIGN,
        "        return release if self._once else InOrder(release)\n",
        "        return release\n",
        foreign=True,
    ),
    Mutant(
        "who holds a key that is deleted is not told",
        "python-redis-lock's reset",
        WAITING,
        "            if head is not None:\n                head.lose(now_ns)\n",
        "",
        foreign=True,
    ),
    Mutant(
        "an attempt outlives the deletion of its key",
        "python-redis-lock's reset",
        OUTCOME,
        "    return not quorum.queues.deleted(hold)\n",
        "    return True\n",
        foreign=True,
    ),
    Mutant(
        "an extension outlives the deletion of its key",
        "python-redis-lock's reset",
        EXTEND,
        " or ballot.refused() or hold.lost_ns >= started:",
        " or ballot.refused():",
        foreign=True,
    ),
    # --- watched keys ----------------------------------------------------------------------------------------
    Mutant(
        "a lock is lost when its key was only touched",
        "pushes of CLIENT TRACKING taken for deletions",
        KEYS,
        "            term.watch.alarm(now_ns)\n",
        "            term.lose(KEY_GONE, now_ns)\n",
        theme="deleting",
    ),
    # --- transactions ----------------------------------------------------------------------------------------
    Mutant(
        "a transaction without WATCH",
        "the Redis page on transactions",
        "wire/bridge/transactions.py",
        '[[b"WATCH", *keys], *reads, [b"MULTI"]]',
        '[[b"TIME"], *reads, [b"MULTI"]]',
        theme="watch",
    ),
)
