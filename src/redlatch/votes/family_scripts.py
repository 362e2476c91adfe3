"""The Lua scripts of the lock family: fair locks, readers and writers, semaphores, rate limits.

The scripts return 1 or 0 unless a comment says otherwise. Every key that they write has a ttl: it lives as long as its
last member. `now` is the server's clock in milliseconds, by which its keys expire. Expired members never count.

As in `scripts`, a missing right leaves no half-done change. A script tests a right with a command that changes nothing,
such as ZREM of the member "", which no key has. What cannot be tested so is undone after an error.
"""

from __future__ import annotations

from redlatch.votes.scripts import Script

# `stay` makes a key live for at least `ms` milliseconds. It returns true for a key that does not exist yet, whose ttl
# must be set after the first write. It comes before the write: a user without the right to PTTL or PEXPIRE leaves no
# key without a ttl.
_NOW = """local t=redis.call("time")
local now=t[1]*1000+math.floor(t[2]/1000)
local function stay(key,ms)
local left=redis.call("pttl",key)
if left<tonumber(ms) then redis.call("pexpire",key,ms) end
return left==-2
end
"""

# --- fair: KEYS[1] the lock, KEYS[2] the queue: the waiting clients (score: the ticket), KEYS[3] until when each counts
# as alive, KEYS[4] the client's own bell ------------------------------------------------------------------
# A client is a random number from BELLS on. Each one watches a key of its own, its bell, which appears when the client
# is called. A waiter that was told that it is the first also watches the lock, so nobody needs to call it; KEYS[3] then
# has a fraction in its score.
#
# A script cannot ring a bell whose key it was not given. The winner is told who is next, and names that bell when it
# releases the lock. Where another waiter is first by then, and was not told so, the answer names it, and the client
# rings its bell by a second command on the same connection.

# Waiters draw tickets by their own clocks, in microseconds. Tickets this close count as simultaneous.
SKEW_US = 100_000

# The least number of a client: above all tickets, and exact in a double.
BELLS = 1 << 52

# For how long a bell rings, in milliseconds: as long as a waiter counts as alive.
RINGS_MS = 2500

# Between the key of the queue and the number of the client.
BELL = b":"

# `take` takes a free lock, and with `me` leaves the queue. The first SET changes nothing: it fails at maxmemory, and if
# the user lacks the right.
_PLACES = """local function head() return redis.call("zrange",KEYS[2],0,0)[1] end
local function leave(id)
redis.call("zrem",KEYS[3],id)
return redis.call("zrem",KEYS[2],id)==1
end
"""
_TAKE = """local function take(me)
if me then
redis.call("set",KEYS[1],"","XX")
redis.call("del",KEYS[4])
leave(me)
end
redis.call("set",KEYS[1],ARGV[1],"PX",ARGV[2])
return tonumber(head() or 1)
end
"""

# `next` removes dead waiters from the front, and returns the first one that is alive or is `me`, whether it removed
# any, and until when that one counts as alive; `first` is the head if it is known. `stand` fails first if the user
# lacks a right that entering or leaving the queue needs, except for ZRANGE, which the scripts use before. ZADD is
# first, so that it fails at maxmemory. `may_set` fails without the rights to DEL and SET.
_ALIVE = (
    _NOW
    + """local function may_set()
redis.call("del",KEYS[4])
redis.call("set",KEYS[4],"","XX")
end
local function next(me,first)
local dead=false
while true do
first=first or head()
if not first or first==me then return first,dead end
local over=tonumber(redis.call("zscore",KEYS[3],first) or 0)
if over>now then return first,dead,over end
if not dead then may_set() end
leave(first)
first,dead=nil,true
end
end
local function stand(me,ticket,ms)
redis.call("zadd",KEYS[2],"XX",0,"")
redis.call("zrem",KEYS[2],"")
redis.call("zscore",KEYS[3],"")
may_set()
local queue,alive=stay(KEYS[2],ms*2),stay(KEYS[3],ms*2)
redis.call("zadd",KEYS[2],ticket,me)
if queue then redis.call("pexpire",KEYS[2],ms*2) end
redis.call("zadd",KEYS[3],now+ms,me)
if alive then redis.call("pexpire",KEYS[3],ms*2) end
end
"""
)

# ARGV[1] token, [2] ttl in milliseconds, [3] client, [4] ticket, [5] milliseconds until a waiter counts as dead, [6]
# "1" if the client is new in the queue, "2" if its ticket has changed, else "0". Take the lock if it is free and no
# living waiter is before us; else enter the queue.
#
# If the client has the lock, return the next client, or 1 if none waits. Otherwise return 0 or less: minus the client
# to call; or, if our new or changed ticket is more than SKEW_US below the highest one, leave the queue and return minus
# the highest ticket; or, if the lock is held and we are first, return minus (1 + the milliseconds that its key will
# live).
#
# The first waiter of a free lock was already called, so the script names it only if dead waiters left the queue or our
# ticket has changed. While the lock is held, a new client does not check that the one before it is alive: FAIR_RELEASE
# does, and the new client asks again. The usual ways to the lock come first, without TIME and the functions of
# `_ALIVE`: a cycle of a lone caller takes the server 6 us instead of 9.
FAIR_ACQUIRE = Script(
    _PLACES
    + _TAKE
    + """local me,ticket=ARGV[3],ARGV[4]
local left=redis.call("pttl",KEYS[1])
local last={}
if ARGV[6]=="0" then
if head()==me and left==-2 then return take(me) end
else
last=redis.call("zrange",KEYS[2],-1,-1,"withscores")
if left==-2 and not last[1] and ARGV[6]=="1" then
redis.call("set",KEYS[1],ARGV[1],"PX",ARGV[2])
return 1
end
end
"""
    + _ALIVE
    + f"""local behind=false
if last[1] then
if tonumber(last[2])>tonumber(ticket)+{SKEW_US} then
if ARGV[6]=="2" then leave(me) end
return -tonumber(last[2])
end
behind=ARGV[6]=="1" and tonumber(last[2])<tonumber(ticket)
end
if left==-2 then
if not behind then stand(me,ticket,ARGV[5]) end
local first,dead=next(me)
if first==me or not first then return take(not behind and me) end
if behind then stand(me,ticket,ARGV[5]) end
return (dead or ARGV[6]=="2") and -tonumber(first) or 0
end
stand(me,ticket,ARGV[5])
if behind or next(me)~=me then return 0 end
redis.call("zadd",KEYS[3],now+ARGV[5]+0.5,me)
return left<0 and -1e13 or -1-math.min(left,1e13)""",
    keys=4,
)

# ARGV[1] token, [2] client, [3] ticket, [4] and on: clients that may be next, whose bells are KEYS[5] and on. Release
# the lock if it holds the token; else leave the queue if our place there is not later than the ticket (it may be
# earlier, if the command that changed the ticket was lost). If the lock is free then, ring the bell of the first
# waiter; if that is none of [4] and on, return its number if we held the lock, else minus its number. Otherwise return
# 1 if we held the lock, else 0. A bell cannot ring at maxmemory; the waiter then asks by itself within a second.
FAIR_RELEASE = Script(
    _PLACES
    + """local token=redis.call("get",KEYS[1])
local mine=token==ARGV[1]
local answer=mine and 1 or 0
local first=head()
if not first then
redis.call("del",mine and KEYS[1] or KEYS[4])
return answer
end
"""
    + _ALIVE
    + f"""local me=ARGV[2]
if not mine then
redis.call("del",KEYS[4])
if tonumber(redis.call("zscore",KEYS[2],me) or "1e300")<=tonumber(ARGV[3]) then leave(me) end
if token then return answer end
end
local _,over
first,_,over=next(nil,mine and first)
if mine then redis.call("del",KEYS[1]) end
if not first then return answer end
for i=4,#ARGV do
if ARGV[i]==first then
redis.pcall("set",KEYS[i+1],"c","PX",{RINGS_MS})
return answer
end
end
if over%1>0 then return answer end
return mine and tonumber(first) or -tonumber(first)""",
    keys=4,
)

# ARGV[1] token, [2] client, [3] ticket, [4] milliseconds until the waiter counts as dead, or 0. Release the lock if it
# holds the token, and enter the queue again unless [4] is 0. If another waiter is first, return its number. Otherwise
# ring our own bell, and return 1; or return 0 if the lock did not hold the token. The release comes first, so that it
# does not fail when the user lacks a right that only the queue needs.
FAIR_UNDO = Script(
    """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
redis.call("del",KEYS[1])
"""
    + _PLACES
    + _ALIVE
    + f"""if ARGV[4]~="0" then
head()
stand(ARGV[2],ARGV[3],ARGV[4])
end
local first=next(ARGV[2])
if first and first~=ARGV[2] then return tonumber(first) end
if first then redis.pcall("set",KEYS[4],"c","PX",{RINGS_MS}) end
return 1""",
    keys=4,
)

# KEYS[1] the lock, KEYS[2] a bell. Return -2 if the lock is free or the bell rings, else PTTL of the lock.
FAIR_LOOK = Script(
    """if redis.call("strlen",KEYS[2])>0 then return -2 end
return redis.call("pttl",KEYS[1])""",
    keys=2,
)

# --- readers, writers and semaphores: KEYS[1] the holders or the taken slots (score: when each expires) ---

_IN = (
    _NOW
    + """local function is_in(member)
local over=tonumber(redis.call("zscore",KEYS[1],member) or 0)
return over>now and over
end
"""
)

_EXTENDS = (
    _IN
    + """local function lengthen(member,over,ms)
stay(KEYS[1],ms)
if over<now+ms then redis.call("zadd",KEYS[1],now+ms,member) end
end
"""
)

FULL = Script(_NOW + 'return redis.call("zcount",KEYS[1],"("..now,"+inf")>=tonumber(ARGV[1]) and 1 or 0')

# --- readers and writers: KEYS[1] the holders (score: when the lock expires), KEYS[2] the writer's token, KEYS[3] the
# waiting writers (score: when the writer counts as dead). Members of KEYS[1] are the readers' tokens, and "w" for the
# writer. Members of KEYS[3] are the tokens of the writers' first attempts, so each writer removes only its own. A
# refusal does not change KEYS[1]: after a change by this client, the server would push no change by others.

# ARGV[1] token, [2] ttl in milliseconds. No reader comes in while a writer holds the lock or waits.
READ_ACQUIRE = Script(
    _IN
    + """if redis.call("zcount",KEYS[3],"("..now,"+inf")>0 or is_in("w") then return 0 end
redis.call("zremrangebyscore",KEYS[1],"-inf",now)
local new=stay(KEYS[1],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
if new then redis.call("pexpire",KEYS[1],ARGV[2]) end
return 1""",
    keys=3,
)
READ_RELEASE = Script('return redis.call("zrem",KEYS[1],ARGV[1])', keys=3)
READ_EXTEND = Script(
    _EXTENDS
    + """redis.call("zremrangebyscore",KEYS[1],"-inf",now)
local over=is_in(ARGV[1])
if not over then return 0 end
lengthen(ARGV[1],over,ARGV[2])
return 1""",
    keys=3,
)
READ_OWNED = Script(_IN + "return is_in(ARGV[1]) and 1 or 0", keys=3)

# ARGV[1] token, [2] ttl in milliseconds, [3] milliseconds until a waiting writer counts as dead, [4] name of the
# writer. If there is a holder, add the name to KEYS[3], unless it is "": readers stay out until the writer leaves or
# counts as dead. The script tests ZREM before the first write, so that it can remove "w" again if SET is refused.
WRITE_ACQUIRE = Script(
    _IN
    + """if redis.call("zcount",KEYS[1],"("..now,"+inf")>0 then
if ARGV[4]=="" then return 0 end
redis.call("zremrangebyscore",KEYS[3],"-inf",now)
redis.call("zrem",KEYS[3],"")
local new=stay(KEYS[3],ARGV[3])
redis.call("zadd",KEYS[3],now+ARGV[3],ARGV[4])
if new then redis.call("pexpire",KEYS[3],ARGV[3]) end
return 0
end
redis.call("zremrangebyscore",KEYS[1],"-inf",now)
redis.call("zrem",KEYS[3],"")
local new=stay(KEYS[1],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
local done=redis.pcall("set",KEYS[2],ARGV[1],"PX",ARGV[2])
if done.err then
redis.call("zrem",KEYS[1],"w")
return done
end
if new then redis.call("pexpire",KEYS[1],ARGV[2]) end
redis.call("zrem",KEYS[3],ARGV[4])
return 1""",
    keys=3,
)

# ARGV[1] token, [2] the name of a writer that no longer waits, or "". When the last waiting writer leaves, KEYS[1] is
# changed and changed back, so that the server pushes to the readers that wait for it.
WRITE_RELEASE = Script(
    """local mine=redis.call("get",KEYS[2])==ARGV[1]
local over=tonumber(redis.call("zscore",KEYS[3],ARGV[2]) or 0)
if over>0 then
local t=redis.call("time")
local now=t[1]*1000+math.floor(t[2]/1000)
redis.call("zrem",KEYS[3],"")
if redis.call("zcount",KEYS[3],"("..now,"+inf")<=(over>now and 1 or 0) then
redis.call("zadd",KEYS[1],0,"i")
redis.call("zrem",KEYS[1],"i")
end
end
redis.call("zrem",KEYS[3],ARGV[2])
if not mine then return 0 end
redis.call("del",KEYS[2])
redis.call("zrem",KEYS[1],"w")
return 1""",
    keys=3,
)
WRITE_EXTEND = Script(
    _EXTENDS
    + """local over=is_in("w")
if not over or redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[2],math.max(redis.call("pttl",KEYS[2]),tonumber(ARGV[2])))
lengthen("w",over,ARGV[2])
return 1""",
    keys=3,
)
WRITE_OWNED = Script('if redis.call("get",KEYS[2])==ARGV[1] then return 1 else return 0 end', keys=3)

# --- semaphores and rate limits: KEYS[1] the taken slots (score: when each expires), KEYS[2] the token of each slot -

# ARGV[1] token, [2] ttl in milliseconds, [3] slot, [4] first slot to report, [5] number of slots to report (at most
# 50), [6] number of all slots. Take the slot if it is free. Otherwise return minus a sum: 2^i for each taken slot [4] +
# i, and 2^50 if all slots are taken.
_TAKE_SLOT = (
    _IN
    + """if not is_in(ARGV[3]) then
local new,first=stay(KEYS[1],ARGV[2]),stay(KEYS[2],ARGV[2])
redis.call("hset",KEYS[2],ARGV[3],ARGV[1])
if first then redis.call("pexpire",KEYS[2],ARGV[2]) end
local added=redis.pcall("zadd",KEYS[1],now+ARGV[2],ARGV[3])
if type(added)=="table" then
redis.pcall("hdel",KEYS[2],ARGV[3])
return added
end
if new then redis.call("pexpire",KEYS[1],ARGV[2]) end
return 1
end
local mask=redis.call("zcount",KEYS[1],"("..now,"+inf")>=tonumber(ARGV[6]) and 2^50 or 0
"""
)
_TAKEN_SLOTS = """for i=0,ARGV[5]-1 do
if is_in(ARGV[4]+i) then mask=mask+2^i end
end
return -mask"""
SLOT_ACQUIRE = Script(_TAKE_SLOT + _TAKEN_SLOTS, keys=2)

# As SLOT_ACQUIRE, for permits. But if all slots are taken, return minus (2^50 + the milliseconds until the first of
# them is free). Slots that have expired come before it if the limit was higher before.
RATE_ACQUIRE = Script(
    _TAKE_SLOT
    + """if mask>0 then
local over=redis.call("zcount",KEYS[1],"-inf",now)
local first=redis.call("zrange",KEYS[1],over,over,"withscores")
return -mask-math.max(0,math.min(first[2]-now,2^49))
end
"""
    + _TAKEN_SLOTS,
    keys=2,
)

# ARGV[1] token, [2] slot.
SLOT_RELEASE = Script(
    """if redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] then return 0 end
redis.call("zrem",KEYS[1],"")
redis.call("hdel",KEYS[2],ARGV[2])
redis.call("zrem",KEYS[1],ARGV[2])
return 1""",
    keys=2,
)

# ARGV[1] token, [2] slot, [3] ttl in milliseconds. PEXPIRE comes first: a script may write at maxmemory once its first
# write command was one that needs no memory.
SLOT_EXTEND = Script(
    _EXTENDS
    + """local over=is_in(ARGV[2])
if not over or redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[2],math.max(redis.call("pttl",KEYS[2]),tonumber(ARGV[3])))
lengthen(ARGV[2],over,ARGV[3])
return 1""",
    keys=2,
)
SLOT_OWNED = Script(
    _IN + 'if redis.call("hget",KEYS[2],ARGV[2])==ARGV[1] and is_in(ARGV[2]) then return 1 else return 0 end', keys=2
)

# --- locks of python-redis-lock, whose waiters wait with BLPOP for an element of the list KEYS[2] --------

# ARGV[1] token, [2] ttl of the element in milliseconds. Release the lock and push one element, which wakes one waiter,
# now or later. DEL comes first, as PEXPIRE in SLOT_EXTEND. PEXPIRE also runs before the first element is written: a
# user without the right to it leaves no key without a ttl.
SIGNAL_RELEASE = Script(
    """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
redis.call("del",KEYS[2])
redis.call("pexpire",KEYS[2],ARGV[2])
redis.call("lpush",KEYS[2],1)
redis.call("pexpire",KEYS[2],ARGV[2])
redis.call("del",KEYS[1])
return 1""",
    keys=2,
)

ALL = (
    FAIR_ACQUIRE,
    FAIR_RELEASE,
    FAIR_UNDO,
    FAIR_LOOK,
    READ_ACQUIRE,
    READ_RELEASE,
    READ_EXTEND,
    READ_OWNED,
    WRITE_ACQUIRE,
    WRITE_RELEASE,
    WRITE_EXTEND,
    WRITE_OWNED,
    SLOT_ACQUIRE,
    RATE_ACQUIRE,
    SLOT_RELEASE,
    SLOT_EXTEND,
    SLOT_OWNED,
    FULL,
    SIGNAL_RELEASE,
)
