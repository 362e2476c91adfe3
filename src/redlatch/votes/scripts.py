"""The Lua scripts of plain and fenced locks and of the guard.

Each script takes the key of the lock as KEYS[1] and returns 1 (yes) or 0 (no), unless its comment says otherwise. The
scripts that extend or release a lock use only GET, DEL, PTTL and PEXPIRE. So a minimal ACL user can run them, and they
work at maxmemory, where SET fails.

A server does not roll back after an error. So each script first runs every command that the server may refuse, and only
then writes; or it undoes its writes. If the user lacks a right, no half-done change remains.
Source of RELEASE: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

import hashlib

# Our own tokens are shorter.
LONGEST_TOKEN = 128


class Script:
    """A script, and the number of its keys; a call may add more keys, which it also has in its arguments."""

    __slots__ = ("_begins", "keys", "sha", "text")

    def __init__(self, text: str, keys: int = 1) -> None:
        self.text = text.encode()
        self.keys = keys
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._begins: dict[int, bytes] = {}

    def begin(self, arguments: int, more_keys: int) -> bytes:
        """Return how a call with so many arguments begins, of which the first are its keys."""
        # Calls have far fewer arguments.
        which = more_keys << 16 | arguments if more_keys else arguments
        begin = self._begins.get(which)
        if begin is None:
            number = b"%d" % (self.keys + more_keys)
            head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n"
            begin = head % (3 + arguments, self.sha, len(number), number)
            self._begins[which] = begin
        return begin


# ARGV[1] token.
RELEASE = Script('if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end')

# ARGV[1] token, ARGV[2] milliseconds that the key lives from now. The script never creates the key, and never shortens
# a ttl, because a late copy of a short extension may arrive after a longer one. PTTL costs 0.1 to 0.4 us. PEXPIRE GT
# needs Redis 7, and it does not give a ttl to a key without one.
EXTEND = Script(
    """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
if redis.call("pttl",KEYS[1])<tonumber(ARGV[2]) then redis.call("pexpire",KEYS[1],ARGV[2]) end
return 1"""
)

# ARGV[1] token.
OWNED = Script('if redis.call("get",KEYS[1])==ARGV[1] then return 1 else return 0 end')

LOCKED = Script('if redis.call("get",KEYS[1]) then return 1 else return 0 end')

# KEYS[2] the fence counter, or KEYS[1] if the lock has none. Return one status: the milliseconds that the key will
# live, the counter, and the token. Line breaks in a token become spaces.
HOLDER = Script(
    f"""local held=redis.call("get",KEYS[1])
if not held then return 0 end
local counter=KEYS[2]~=KEYS[1] and redis.call("get",KEYS[2]) or 0
return {{ok=redis.call("pttl",KEYS[1]).." "..counter.." "..string.sub(held,1,{LONGEST_TOKEN})}}""",
    keys=2,
)

# A fence counter expires a day after it was last raised. A missing one counts as the server's clock (TIME, in
# microseconds) minus half a day. That is above the expired counter if clocks differ by less than half a day, and
# counters run ahead of the clocks by less than that.
FENCE_IDLE_MS = 86_400_000
_COUNTER = f"""local function counter()
local c=redis.call("get",KEYS[2])
if c then return tonumber(c) end
local t=redis.call("time")
return t[1]*1000000+t[2]-{FENCE_IDLE_MS * 500}
end
"""

# KEYS[2] counter, ARGV[1] token, ARGV[2] ttl in milliseconds, ARGV[3] first and ARGV[4] last proposed fence. If the
# first fence is above the counter, raise the counter to the last one and return the first. Otherwise return minus the
# counter, and store a missing one: a second round would otherwise read a later clock. Return 0 if the key exists.
ACQUIRE_FENCED = Script(
    _COUNTER
    + f"""local c=counter()
if not redis.call("set",KEYS[1],ARGV[1],"NX","PX",ARGV[2]) then return 0 end
if tonumber(ARGV[3])<=c then
redis.call("set",KEYS[2],string.format("%.0f",c),"NX","PX",{FENCE_IDLE_MS})
return -c
end
redis.call("set",KEYS[2],ARGV[4],"PX",{FENCE_IDLE_MS})
return tonumber(ARGV[3])""",
    keys=2,
)

# KEYS[2] counter, ARGV[1] token, ARGV[2] first and ARGV[3] last proposed fence. If the key holds the token and the
# first fence is above the counter, raise the counter to the last one.
CONFIRM = Script(
    _COUNTER
    + f"""if redis.call("get",KEYS[1])~=ARGV[1] or tonumber(ARGV[2])<=counter() then return 0 end
redis.call("set",KEYS[2],ARGV[3],"PX",{FENCE_IDLE_MS})
return 1""",
    keys=2,
)

# A marker lives for 35 days without a client, so a monthly job finds it. That is more than twice the longest ttl.
KEPT_MS = 35 * 86_400_000

# A marker has two lines: its identity, and its horizon in milliseconds.
# KEYS[1] marker, ARGV[1] expected identity, ARGV[2] wanted horizon. Raise the horizon to at least the wanted one, and
# return the server's clock in microseconds since 1970 and the horizon, as one status; or 0 if the identity is another
# one. PEXPIRE comes first: at maxmemory a server refuses SET, unless the script has already written.
PULSE = Script(f"""local m=redis.call("get",KEYS[1])
if not m or string.sub(m,1,#ARGV[1]+1)~=ARGV[1].."\\n" then return 0 end
local h=tonumber(string.sub(m,#ARGV[1]+2))
local w=tonumber(ARGV[2])
local t=redis.call("time")
redis.call("pexpire",KEYS[1],"{KEPT_MS}")
if w>h then redis.call("set",KEYS[1],ARGV[1].."\\n"..ARGV[2],"PX","{KEPT_MS}") h=w end
return {{ok=string.format("%.0f %.0f",t[1]*1000000+t[2],h)}}""")

# Return how many replicas the server sends its writes to. A replica that still loads its first copy does not count.
COUNT_REPLICAS = Script(
    """local n=0
for _ in string.gmatch(redis.call("info","replication"),"slave%d+:[^%c]*state=online") do n=n+1 end
return n""",
    keys=0,
)

# KEYS[1] marker, ARGV[1] expected marker or "" if there should be none, ARGV[2] new marker, ARGV[3] its ttl in
# milliseconds, ARGV[4] when the client decided to write it, in microseconds by this server's clock. A write that is
# more than MARK_WITHIN_US old is refused. For PEXPIRE see PULSE.
MARK_WITHIN_US = 5_000_000
MARK = Script(f"""local t=redis.call("time")
if t[1]*1000000+t[2]-tonumber(ARGV[4])>{MARK_WITHIN_US} then return 0 end
if (redis.call("get",KEYS[1]) or "")~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[1],ARGV[3])
redis.call("set",KEYS[1],ARGV[2],"PX",ARGV[3])
return 1""")

ALL = (RELEASE, EXTEND, OWNED, LOCKED, HOLDER, ACQUIRE_FENCED, CONFIRM, PULSE)
