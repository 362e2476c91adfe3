"""The Lua scripts, each with its SHA-1: loaded at every connect, called by EVALSHA.

Each takes the lock's key as KEYS[1] and answers 1 (yes) or 0 (no), unless it says otherwise. Those that keep or free a
lock use GET, DEL, PTTL and PEXPIRE only, so that a minimal ACL user can run them and so that they work at maxmemory,
where SET does not.

A server runs a script to its end or to its first error, and rolls nothing back. So each script runs every command that
may be refused before its first write, or undoes what it wrote. A missing right leaves nothing half done.
Source of RELEASE: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

import hashlib


class Script:
    """One script: its text, how many keys it takes, and the SHA-1 that EVALSHA names it by (hexadecimal, as bytes)."""

    __slots__ = ("_begins", "keys", "sha", "text")

    def __init__(self, text: str, keys: int = 1) -> None:
        self.text = text.encode()
        self.keys = b"%d" % keys
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._begins: dict[int, bytes] = {}

    def begin(self, arguments: int) -> bytes:
        """Return how a call by EVALSHA begins in RESP, by how many keys and other arguments follow."""
        begin = self._begins.get(arguments)
        if begin is None:
            head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n"
            begin = head % (3 + arguments, self.sha, len(self.keys), self.keys)
            self._begins[arguments] = begin
        return begin


# ARGV[1] token. Delete the key if it is still ours.
RELEASE = Script('if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end')

# ARGV[1] token, ARGV[2] milliseconds. Keep the key for at least that long from now if it is still ours. Never create
# it, never extend another holder's key, and never shorten its ttl: a late copy of a short extension may arrive after a
# longer one. PTTL costs 0.1 to 0.4 us. PEXPIRE GT needs Redis 7, and leaves a key without a ttl as it is.
EXTEND = Script(
    """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
if redis.call("pttl",KEYS[1])<tonumber(ARGV[2]) then redis.call("pexpire",KEYS[1],ARGV[2]) end
return 1"""
)

# ARGV[1] token. Is the key ours?
OWNED = Script('if redis.call("get",KEYS[1])==ARGV[1] then return 1 else return 0 end')

# Is there a key, whoever's?
LOCKED = Script('if redis.call("get",KEYS[1]) then return 1 else return 0 end')

# A counter that nobody has raised for a day goes. Where there is none it counts as half a day before the server's clock
# (TIME, in microseconds), which is more than it was as long as clocks differ, and counters run ahead of them, by less.
FENCE_IDLE_MS = 86_400_000
_COUNTER = f"""local function counter()
local c=redis.call("get",KEYS[2])
if c then return tonumber(c) end
local t=redis.call("time")
return t[1]*1000000+t[2]-{FENCE_IDLE_MS * 500}
end
"""

# KEYS[2] counter, ARGV[1] token, ARGV[2] milliseconds, ARGV[3] first and ARGV[4] last of the numbers proposed. Take the
# key if it is free; then raise the counter to the last number if the first is above it. Answers the first number, minus
# the counter where that is not below it (and is kept: a second round must not find the clock further on), or 0 where
# the key is not free.
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

# KEYS[2] counter, ARGV[1] token, ARGV[2] first and ARGV[3] last number. Raise the counter likewise while the key is
# ours.
CONFIRM = Script(
    _COUNTER
    + f"""if redis.call("get",KEYS[1])~=ARGV[1] or tonumber(ARGV[2])<=counter() then return 0 end
redis.call("set",KEYS[2],ARGV[3],"PX",{FENCE_IDLE_MS})
return 1""",
    keys=2,
)

# KEYS[1] the marker (see `guard`), ARGV[1] what it should be, ARGV[2] milliseconds that it is kept. Answers the
# server's clock in microseconds since 1970, or 0 where the marker is another one.
PULSE = Script("""if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
local t=redis.call("time")
redis.call("pexpire",KEYS[1],ARGV[2])
return t[1]*1000000+t[2]""")

# ARGV[1] what the marker is, empty where there is none, ARGV[2] what it is to be, ARGV[3] milliseconds that it is kept,
# ARGV[4] when that was decided, in microseconds by this server's clock: five seconds later it is not done any more.
MARK = Script("""local t=redis.call("time")
if t[1]*1000000+t[2]-tonumber(ARGV[4])>5000000 then return 0 end
if (redis.call("get",KEYS[1]) or "")~=ARGV[1] then return 0 end
redis.call("set",KEYS[1],ARGV[2],"PX",ARGV[3])
return 1""")

ALL = (RELEASE, EXTEND, OWNED, LOCKED, ACQUIRE_FENCED, CONFIRM, PULSE)
