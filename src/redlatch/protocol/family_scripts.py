"""The Lua scripts of the lock family: fair locks, readers and writers, semaphores.

They answer as those in `scripts` do. All that they write has a ttl: every key lives for as long as the latest of what
is in it. `now` is the server's clock in milliseconds, by which its keys expire, too; what is over is pruned before
anything is decided.
"""

from __future__ import annotations

from redlatch.protocol.scripts import Script

_NOW = """local t=redis.call("time")
local now=t[1]*1000+math.floor(t[2]/1000)
local function stay(key,ms)
if redis.call("pttl",key)<tonumber(ms) then redis.call("pexpire",key,ms) end
end
"""

# --- fair: KEYS[1] the lock, KEYS[2] the queue: clients by ticket ----------------------------------------
# Each that waits has a key of its own, which is empty and becomes "c" when it is called. It goes when the client has
# not asked for a while; who holds the lock has none.

# Tickets are drawn by the waiters' clocks; what is out of order by less than this came at the same time.
SKEW_US = 100_000

# Between the lock's key and a client's name: the client's key.
WAITER = b"\0waits:"

# Return the first in the queue, for how long it is alive (below 0 if it holds), the second, and whether there were
# others before, who are dead and passed over.
_NEXT = """local function waits(id) return KEYS[1].."\\0waits:"..id end
local function next(free,me)
local dead=false
while true do
local two=redis.call("zrange",KEYS[2],0,1)
if not two[1] or two[1]==me then return two[1],0,nil,dead end
local left=redis.call("pttl",waits(two[1]))
if left>0 or not free then return two[1],left,two[2],dead end
redis.call("zrem",KEYS[2],two[1])
dead=true
end
end
"""

# Call the first; the lock is free. At maxmemory it may fail: then the first looks for itself, within a second.
_CALL = (
    _NEXT
    + """local function call()
local first,left=next(true)
if first then redis.pcall("set",waits(first),"c","XX","PX",left) end
end
"""
)

# ARGV[1] token, [2] ttl, [3] client, [4] ticket, [5] milliseconds until a waiter counts as dead, [6] "1" if it is new
# in the queue, "2" if its ticket has changed. Stand in the queue, and take the lock if it is free and nobody alive is
# before us; the first has been called already, unless it is another one than before. Answers 1, 0, or of who is next
# minus (1 + the milliseconds that the lock's key will stay), or minus the highest ticket where ours is far below it.
FAIR_ACQUIRE = Script(
    _CALL
    + f"""local me,stays=ARGV[3],ARGV[5]
if ARGV[6]~="0" then
local last=redis.call("zrange",KEYS[2],-1,-1,"withscores")[2]
if last and tonumber(last)>tonumber(ARGV[4])+{SKEW_US} then return -tonumber(last) end
end
redis.call("zadd",KEYS[2],ARGV[4],me)
local held=redis.call("pttl",KEYS[1])
local first,alive,second,dead=next(held==-2,me)
local won=held==-2 and first==me
if won then
redis.call("set",KEYS[1],ARGV[1],"PX",ARGV[2])
redis.call("del",waits(me))
stays=ARGV[2]
else
redis.call("set",waits(me),"","PX",stays)
if held==-2 and (dead or ARGV[6]=="2") then call() end
end
if redis.call("pttl",KEYS[2])<tonumber(stays) then redis.call("pexpire",KEYS[2],stays*2) end
if won then return 1 end
if held==-2 or first~=me and (alive>0 or second~=me) then return 0 end
return held<0 and -1e13 or -1-math.min(held,1e13)""",
    keys=2,
)

# ARGV[1] token, [2] client, [3] ticket. Release the lock if it is ours, leave the queue, and call who is first now.
FAIR_RELEASE = Script(
    _CALL
    + """local me=ARGV[2]
if redis.call("get",KEYS[1])==ARGV[1] then
redis.call("del",KEYS[1])
redis.call("zrem",KEYS[2],me)
call()
return 1
end
if tonumber(redis.call("zscore",KEYS[2],me) or "0")==tonumber(ARGV[3]) then
redis.call("zrem",KEYS[2],me)
redis.call("del",waits(me))
end
if redis.call("exists",KEYS[1])==0 then call() end
return 0""",
    keys=2,
)

# ARGV[1] token, [2] client, [3] milliseconds until it counts as dead. Release the lock if it is ours, but keep the
# place in the queue.
FAIR_UNDO = Script(
    _CALL
    + """if redis.call("get",KEYS[1])~=ARGV[1] then return 0 end
redis.call("del",KEYS[1])
redis.call("set",waits(ARGV[2]),"","PX",ARGV[3])
call()
return 1""",
    keys=2,
)

# --- readers and writers: KEYS[1] who is in (each by when it is over), KEYS[2] the writer's token, KEYS[3] is there
# while a writer waits for readers to leave. Members of KEYS[1] are the readers' tokens, and "w" for the writer. Who is
# refused changes nothing of KEYS[1]: who changes a key is not told any more of what others do to it.

_IN = (
    _NOW
    + """local function is_in(who)
local over=redis.call("zscore",KEYS[1],who)
return over and tonumber(over)>now
end
local function prune() redis.call("zremrangebyscore",KEYS[1],"-inf",now) end
"""
)

# ARGV[1] token, [2] ttl. Let a reader in unless a writer is in, or waits.
READ_ACQUIRE = Script(
    _IN
    + """if redis.call("exists",KEYS[3])==1 or is_in("w") then return 0 end
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
prune()
stay(KEYS[1],ARGV[2])
return 1""",
    keys=3,
)
READ_RELEASE = Script('return redis.call("zrem",KEYS[1],ARGV[1])', keys=3)
READ_EXTEND = Script(
    _IN
    + """prune()
if not is_in(ARGV[1]) then return 0 end
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
stay(KEYS[1],ARGV[2])
return 1""",
    keys=3,
)
READ_OWNED = Script(_IN + "return is_in(ARGV[1]) and 1 or 0", keys=3)

# ARGV[1] token, [2] ttl, [3] milliseconds for which readers are kept out. Let the writer in if nobody is; where readers
# are, keep others out until it asks again.
WRITE_ACQUIRE = Script(
    _IN
    + """if redis.call("zcount",KEYS[1],"("..now,"+inf")>0 then
if not is_in("w") then redis.call("set",KEYS[3],"","PX",ARGV[3]) end
return 0
end
redis.call("set",KEYS[2],ARGV[1],"PX",ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
prune()
redis.call("del",KEYS[3])
stay(KEYS[1],ARGV[2])
return 1""",
    keys=3,
)

# ARGV[1] token, [2] "1" if it waits no more. Let the writer out; readers who were kept out are told of a change.
WRITE_RELEASE = Script(
    """if ARGV[2]=="1" and redis.call("del",KEYS[3])==1 then
redis.call("zadd",KEYS[1],0,"i")
redis.call("zrem",KEYS[1],"i")
end
if redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("del",KEYS[2])
redis.call("zrem",KEYS[1],"w")
return 1""",
    keys=3,
)
WRITE_EXTEND = Script(
    _NOW
    + """if redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[2],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
stay(KEYS[1],ARGV[2])
return 1""",
    keys=3,
)
WRITE_OWNED = Script('if redis.call("get",KEYS[2])==ARGV[1] then return 1 else return 0 end', keys=3)

# Is anybody in?
RW_LOCKED = Script(_NOW + 'return redis.call("zcount",KEYS[1],"("..now,"+inf")>0 and 1 or 0', keys=3)

# --- semaphores: KEYS[1] the slots that are taken (each by when it is over), KEYS[2] the token of each -

_TAKEN = (
    _NOW
    + """local function taken(slot)
local over=redis.call("zscore",KEYS[1],slot)
return over and tonumber(over)>now
end
"""
)

# ARGV[1] token, [2] ttl, [3] slot, [4] first and [5] number of the slots to be told of, 50 at most. Take the slot if it
# is free; else answer minus the sum of 2^i of those that are taken, the i-th from the first.
SLOT_ACQUIRE = Script(
    _TAKEN
    + """if not taken(ARGV[3]) then
redis.call("hset",KEYS[2],ARGV[3],ARGV[1])
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[3])
stay(KEYS[1],ARGV[2])
stay(KEYS[2],ARGV[2])
return 1
end
local mask=0
for i=0,ARGV[5]-1 do
if taken(ARGV[4]+i) then mask=mask+2^i end
end
return -mask""",
    keys=2,
)

# ARGV[1] token, [2] slot.
SLOT_RELEASE = Script(
    """if redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] then return 0 end
redis.call("hdel",KEYS[2],ARGV[2])
redis.call("zrem",KEYS[1],ARGV[2])
return 1""",
    keys=2,
)

# ARGV[1] token, [2] slot, [3] ttl. PEXPIRE comes first, which works at maxmemory, and all after it.
SLOT_EXTEND = Script(
    _TAKEN
    + """if redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] or not taken(ARGV[2]) then return 0 end
redis.call("pexpire",KEYS[2],math.max(redis.call("pttl",KEYS[2]),tonumber(ARGV[3])))
redis.call("zadd",KEYS[1],now+ARGV[3],ARGV[2])
stay(KEYS[1],ARGV[3])
return 1""",
    keys=2,
)
SLOT_OWNED = Script(
    _TAKEN + 'if redis.call("hget",KEYS[2],ARGV[2])==ARGV[1] and taken(ARGV[2]) then return 1 else return 0 end', keys=2
)

# ARGV[1] permits. Are all slots taken?
SLOT_LOCKED = Script(_NOW + 'return redis.call("zcount",KEYS[1],"("..now,"+inf")>=tonumber(ARGV[1]) and 1 or 0', keys=2)
ALL = (
    FAIR_ACQUIRE,
    FAIR_RELEASE,
    FAIR_UNDO,
    READ_ACQUIRE,
    READ_RELEASE,
    READ_EXTEND,
    READ_OWNED,
    WRITE_ACQUIRE,
    WRITE_RELEASE,
    WRITE_EXTEND,
    WRITE_OWNED,
    RW_LOCKED,
    SLOT_ACQUIRE,
    SLOT_RELEASE,
    SLOT_EXTEND,
    SLOT_OWNED,
    SLOT_LOCKED,
)
