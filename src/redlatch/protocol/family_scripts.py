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

# --- fair: KEYS[1] the lock, KEYS[2] the queue (waiter by ticket), KEYS[3] until when each waiter is alive

# Tickets are drawn by the waiters' clocks; what is out of order by less than this came at the same time.
SKEW_US = 100_000

# Waiters are told when the lock changes. Where only the order in the queue does, it is made to.
_STIR = """local function stir()
if redis.call("set",KEYS[1],"","NX","PX",1) then redis.call("del",KEYS[1]) end
end
"""

# ARGV[1] token, [2] ttl, [3] waiter, [4] ticket, [5] milliseconds until the waiter counts as dead. Stand in the queue,
# and take the lock if it is free and nobody alive is before us. Answers 1, 0, or minus the highest ticket where ours is
# far below it: whoever comes later has a higher one.
FAIR_ACQUIRE = Script(
    _NOW
    + _STIR
    + f"""local id=ARGV[3]
local first=redis.call("zrange",KEYS[2],0,0)[1]
while first and first~=id and tonumber(redis.call("hget",KEYS[3],first) or "0")<=now do
redis.call("zrem",KEYS[2],first)
redis.call("hdel",KEYS[3],first)
first=redis.call("zrange",KEYS[2],0,0)[1]
end
local mine=redis.call("zscore",KEYS[2],id)
if not mine then
local last=redis.call("zrange",KEYS[2],-1,-1,"withscores")
if last[2] and tonumber(last[2])>tonumber(ARGV[4])+{SKEW_US} then return -tonumber(last[2]) end
end
if not mine or tonumber(mine)<tonumber(ARGV[4]) then
redis.call("zadd",KEYS[2],ARGV[4],id)
if first==id then stir() end
first=redis.call("zrange",KEYS[2],0,0)[1]
end
local alive=ARGV[5]
local won=first==id and redis.call("set",KEYS[1],ARGV[1],"NX","PX",ARGV[2])
if won then alive=ARGV[2] end
redis.call("hset",KEYS[3],id,now+alive)
stay(KEYS[2],alive)
stay(KEYS[3],alive)
return won and 1 or 0""",
    keys=3,
)

# ARGV[1] token, [2] waiter. Release the lock if it is ours, and leave the queue.
FAIR_LEAVE = Script(
    _STIR
    + """local first=redis.call("zrange",KEYS[2],0,0)[1]
redis.call("zrem",KEYS[2],ARGV[2])
redis.call("hdel",KEYS[3],ARGV[2])
if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end
if first==ARGV[2] then stir() end
return 0""",
    keys=3,
)

# --- readers and writers: KEYS[1] who is in (each by when it is over), KEYS[2] the writer's token ------
# Members of KEYS[1] are the readers' tokens, "w" for the writer, and "i" while a writer waits for readers to leave.

_PRUNED = _NOW + 'redis.call("zremrangebyscore",KEYS[1],"-inf",now)\n'

# ARGV[1] token, [2] ttl. Let a reader in unless a writer is in, or waits.
READ_ACQUIRE = Script(
    _PRUNED
    + """if redis.call("zscore",KEYS[1],"w") or redis.call("zscore",KEYS[1],"i") then return 0 end
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
stay(KEYS[1],ARGV[2])
return 1""",
    keys=2,
)
READ_RELEASE = Script('return redis.call("zrem",KEYS[1],ARGV[1])', keys=2)
READ_EXTEND = Script(
    _PRUNED
    + """if not redis.call("zscore",KEYS[1],ARGV[1]) then return 0 end
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[1])
stay(KEYS[1],ARGV[2])
return 1""",
    keys=2,
)
READ_OWNED = Script(_PRUNED + 'if redis.call("zscore",KEYS[1],ARGV[1]) then return 1 else return 0 end', keys=2)

# ARGV[1] token, [2] ttl, [3] milliseconds for which readers are kept out. Let the writer in if nobody is; where readers
# are, keep others out until it asks again.
WRITE_ACQUIRE = Script(
    _PRUNED
    + """if redis.call("zscore",KEYS[1],"w") then return 0 end
local waits=redis.call("zscore",KEYS[1],"i") and 1 or 0
if redis.call("zcard",KEYS[1])>waits then
redis.call("zadd",KEYS[1],now+ARGV[3],"i")
stay(KEYS[1],ARGV[3])
return 0
end
redis.call("zrem",KEYS[1],"i")
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
redis.call("set",KEYS[2],ARGV[1],"PX",ARGV[2])
stay(KEYS[1],ARGV[2])
return 1""",
    keys=2,
)

# ARGV[1] token, [2] "1" if it waits no more. Let the writer out.
WRITE_RELEASE = Script(
    """if ARGV[2]=="1" then redis.call("zrem",KEYS[1],"i") end
if redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("del",KEYS[2])
redis.call("zrem",KEYS[1],"w")
return 1""",
    keys=2,
)
WRITE_EXTEND = Script(
    _NOW
    + """if redis.call("get",KEYS[2])~=ARGV[1] then return 0 end
redis.call("pexpire",KEYS[2],ARGV[2])
redis.call("zadd",KEYS[1],now+ARGV[2],"w")
stay(KEYS[1],ARGV[2])
return 1""",
    keys=2,
)
WRITE_OWNED = Script('if redis.call("get",KEYS[2])==ARGV[1] then return 1 else return 0 end', keys=2)

# --- semaphores: KEYS[1] the slots that are taken (each by when it is over), KEYS[2] the token of each -

_FREED = (
    _NOW
    + """for _,slot in ipairs(redis.call("zrangebyscore",KEYS[1],"-inf",now)) do
redis.call("zrem",KEYS[1],slot)
redis.call("hdel",KEYS[2],slot)
end
"""
)

# ARGV[1] token, [2] ttl, [3] slot, [4] first and [5] number of the slots to be told of, 50 at most. Take the slot if it
# is free; else answer minus the sum of 2^i of those that are taken, the i-th from the first.
SLOT_ACQUIRE = Script(
    _FREED
    + """if redis.call("hsetnx",KEYS[2],ARGV[3],ARGV[1])==1 then
redis.call("zadd",KEYS[1],now+ARGV[2],ARGV[3])
stay(KEYS[1],ARGV[2])
stay(KEYS[2],ARGV[2])
return 1
end
local taken=0
for i=0,ARGV[5]-1 do
if redis.call("hexists",KEYS[2],ARGV[4]+i)==1 then taken=taken+2^i end
end
return -taken""",
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

# ARGV[1] token, [2] slot, [3] ttl.
SLOT_EXTEND = Script(
    _FREED
    + """if redis.call("hget",KEYS[2],ARGV[2])~=ARGV[1] then return 0 end
redis.call("zadd",KEYS[1],now+ARGV[3],ARGV[2])
stay(KEYS[1],ARGV[3])
stay(KEYS[2],ARGV[3])
return 1""",
    keys=2,
)
SLOT_OWNED = Script(_FREED + 'if redis.call("hget",KEYS[2],ARGV[2])==ARGV[1] then return 1 else return 0 end', keys=2)

ALL = (
    FAIR_ACQUIRE,
    FAIR_LEAVE,
    READ_ACQUIRE,
    READ_RELEASE,
    READ_EXTEND,
    READ_OWNED,
    WRITE_ACQUIRE,
    WRITE_RELEASE,
    WRITE_EXTEND,
    WRITE_OWNED,
    SLOT_ACQUIRE,
    SLOT_RELEASE,
    SLOT_EXTEND,
    SLOT_OWNED,
)
