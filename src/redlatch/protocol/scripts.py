"""The Lua scripts, each with its SHA-1: loaded at every connect, called by EVALSHA.

Each takes the lock's key as KEYS[1] and answers 1 (yes) or 0 (no). They use GET, DEL and PEXPIRE only,
so that a minimal ACL user can run them and so that they work at maxmemory, where SET does not.
Source of RELEASE: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

import hashlib


class Script:
    """One script: its text and the SHA-1 that EVALSHA names it by (in hexadecimal, as bytes)."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


# ARGV[1] token. Delete the key if it is still ours.
RELEASE = Script('if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end')

# ARGV[1] token, ARGV[2] milliseconds. Let the key live that long from now if it is still ours;
# never create it, never give a key to anybody else.
EXTEND = Script(
    'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end'
)

# ARGV[1] token. Is the key ours?
OWNED = Script('if redis.call("get",KEYS[1])==ARGV[1] then return 1 else return 0 end')

# Is there a key, whoever's?
LOCKED = Script('if redis.call("get",KEYS[1]) then return 1 else return 0 end')

ALL = (RELEASE, EXTEND, OWNED, LOCKED)
