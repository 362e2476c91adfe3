"""Filters for text from servers that goes into a log or an error.

A server may repeat what it was sent. A server whose AUTH was renamed answers "ERR unknown command 'AUTH', with args
beginning with: 'default' 'the password'". A server may also send control characters, or a megabyte of text.

  * `redacted` filters replies, which may repeat a token or a password. It keeps only the words that servers use in
    their errors, so a secret is removed whatever it looks like, and wherever the server cuts it off.
  * `redacted_login` filters replies to commands that carry credentials. A password may be a word that servers use, so
    it keeps whole phrases only.
  * `shown` makes text printable that cannot repeat a command, such as a role or a marker.
"""

from __future__ import annotations

import re
from functools import lru_cache

# The longest text that is shown, in characters.
LONGEST = 200

# No error of a server is longer.
_LOOKED_AT = 1024

_LEFT_OUT = "..."

# The errors of Redis 5 to 8 and Valkey 7 to 9 that a lock client may receive. Only their words matter.
_ERRORS = """
ERR unknown command. ERR unsupported command. unknown subcommand or wrong number of arguments, try HELP. syntax error.
wrong number of arguments for this subcommand. value is not an integer or out of range. invalid expire time in command.
DB index is out of range. invalid DB index. SELECT is not allowed in cluster mode. operation not permitted.
max number of clients + cluster connections reached. no such key. internal error. protocol error. server closed.
command not allowed when used memory > 'maxmemory'. OOM allow-oom flag is not set on the script, can not run it.
NOSCRIPT No matching script. Please use EVAL. READONLY You can't write against a read only replica, slave or secondary.
READONLY Can not run script with write flag on readonly replica. WRONGTYPE Operation against a key holding the wrong
kind of value. LOADING Redis, Valkey or KeyDB is loading the dataset in memory. BUSY is busy running a script or a
module command. You can only call SCRIPT KILL, FUNCTION KILL or SHUTDOWN NOSAVE. UNKILLABLE Sorry the script already
executed write commands against the dataset. NOREPLICAS Not enough good replicas, slaves to write. MASTERDOWN Link with
MASTER is down and replica-serve-stale-data, slave-serve-stale-data is set to 'no'. MISCONF is configured to save RDB
snapshots, but it's currently unable, not able to persist data to AOF or on disk. Commands that may modify the data set
are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails
stop-writes-on-bgsave-error option. Please check the server logs for details about the error. Writable scripts are
blocked. Errors writing to the AOF file. No space left on device. CLUSTERDOWN The cluster is down and only accepts read
commands. Hash slot not served. Keys in request don't hash to the same slot. MOVED ASK CROSSSLOT TRYAGAIN Multiple keys
request during rehashing of slot. This instance has cluster support disabled. NOAUTH Authentication required. HELLO must
be called with the client already authenticated. WRONGPASS invalid username-password pair or user is disabled. NOPROTO
unsupported protocol version. NOPERM this user has no permissions to run the command or its subcommand, to access one of
the keys, channels used as arguments, a key, a channel, database, the key. No permission. DENIED Running in protected
mode because protected mode is enabled and no password is set for the default user. In this mode connections are only
accepted from the loopback interface. EXECABORT Transaction discarded because of previous errors. UNBLOCKED client
unblocked. FAILOVER in progress. IOERR error or timeout. Error running, compiling script, new function, call to.
This command is not allowed from script. Unknown command called from script. Wrong number of args calling command from
script. ACL failure in script. The user executing the script can't run this command or subcommand. Write commands are
not allowed from read-only, non deterministic commands. The script with the given hash does
not exist. Lua. stack limit. attempt to index, compare, perform arithmetic on a nil, string, number, boolean value.
CLIENT CACHING YES is only valid when tracking is enabled in OPTIN, OPTOUT mode. can be called only when the client is
in tracking mode. The client ID you want redirect to does not exist. Client tracking over RESP3, RESP2. Invalid client
name. not connected, available, ready, supported, implemented, known, found, yet. temporarily. try again later.
rate limit exceeded. too many requests. backend, upstream, proxy, connection, failure, failed, was, has, been, reset by
peer. shutting down. HTTP bad request. QUEUED PONG OK.
"""

_COMMANDS = """
acl auth caching client del delex delifeq eval evalsha exists get hello incr info load off on optin noloop pexpire ping
pttl px nx scan script select set setname strlen time tracking zadd zcard zcount zrange zrangebyscore zrank zrem zscore
zremrangebyscore zremrangebyrank hget hset hdel hgetall hlen hincrby sadd srem scard smembers lpush lrem lrange publish
watch multi exec discard asking cluster slots
"""

# Such as "EVALSHA", "RESP3" or "can't".
_PART = r"[A-Za-z]+\d?(?:'[a-z]+)?"

_KNOWN = frozenset(re.findall(_PART, f"{_ERRORS} {_COMMANDS}".lower()))

# With the punctuation that may surround it.
_WORD = re.compile(rf"[(\[<`'\"]*({_PART}(?:[-|/]{_PART})*)[`'\")\]>]*[.,:;?!]*")

# The text after the first phrase repeats what the server was sent, and after the second one it says nothing new.
_REST = re.compile(r",? *with args beginning with|, otherwise the HELLO ", re.IGNORECASE)

_CODE = re.compile(r"[A-Z]{2,20}(?= |$)")

# redis-py cuts the code off.
_OF_LOGIN = re.compile(
    r"ERR unknown command [`'](?:AUTH|HELLO|auth|hello)[`']"
    r"|ERR unknown command"
    r"|(?:WRONGPASS )?invalid username-password pair(?: or user is disabled)?"
    r"|(?:ERR )?invalid password"
    r"|(?:ERR )?Client sent AUTH, but no password is set"
    r"|(?:ERR )?AUTH <password> called without any password configured for the default user"
    r"|ERR wrong number of arguments for '(?:auth|hello)' command"
    r"|ERR max number of clients(?: \+ cluster connections)? reached"
    r"|(?:NOAUTH )?Authentication required"
    r"|(?:NOAUTH )?HELLO must be called with the client already authenticated"
    r"|NOPROTO (?:unsupported protocol version|sorry,? this protocol version is not supported)"
    r"|(?:LOADING )?(?:Redis|Valkey|KeyDB) is loading the dataset in memory"
    r"|DENIED (?:Redis is running|Running) in protected mode"
    r"|BUSY (?:Redis|Valkey|KeyDB) is busy running a script"
    r"|(?:MASTERDOWN )?Link with MASTER is down"
)


def shown(text: object, longest: int = LONGEST) -> str:
    """Return a text in printable ASCII, without line breaks, cut to `longest` characters."""
    cut = str(text)[: longest + 1]
    plain = "".join([each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in cut])
    return plain if len(plain) <= longest else plain[:longest] + _LEFT_OUT


def redacted(text: str) -> str:
    return _redacted(text[:_LOOKED_AT])


# A master that is out of memory sends the same error for each command.
@lru_cache(maxsize=128)
def _redacted(text: str) -> str:
    told = _REST.split(text, maxsplit=1)[0]
    code = _CODE.match(told)
    kept = [code[0]] if code is not None else []
    for word in told[code.end() if code is not None else 0 :].split():
        found = _WORD.fullmatch(word)
        known = found is not None and _KNOWN.issuperset(re.split(r"[-|/]", found[1].lower()))
        if known or word in ("+", ">"):
            kept.append(word)
        elif kept[-1:] != [_LEFT_OUT]:
            kept.append(_LEFT_OUT)
    return shown(" ".join(kept))


def redacted_login(text: str) -> str:
    text = text[:_LOOKED_AT]
    phrase = _OF_LOGIN.match(text)
    if phrase is not None:
        return phrase[0]
    code = _CODE.match(text)
    return f"{code[0] if code else 'an error'} (the rest is left out: it may repeat the credentials)"
