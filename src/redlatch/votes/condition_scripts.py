"""The Lua scripts of conditions and latches; the rules of `family_scripts` hold here, too.

CALL_LEAVE and LATCH_UNDO return 1. The others return neither 0 nor 1, so a ballot keeps each answer with its master.
"""

from __future__ import annotations

from redlatch.votes.scripts import Script

# As in `family_scripts`.
_STAY = """local function stay(key,ms)
local left=redis.call("pttl",key)
if left<tonumber(ms) then redis.call("pexpire",key,ms) end
return left==-2
end
"""

# --- conditions: KEYS[1] the waiters (member: the ticket; score: until when it counts as alive), KEYS[2] the calls,
# KEYS[3] the bell of all waiters --------------------------------------------------------------------------
#
# Tickets and calls are numbers from one sequence: a waiter may take only the calls above its ticket, so no call goes to
# a waiter that came later. A member of KEYS[2] is "number:ticket" for a call that a waiter has, "number:" for one that
# no waiter has yet, and "number:*" for a call of all waiters below the number; its score is when it expires.
#
# Each waiter watches two keys: its own bell, KEYS[1] .. ":" .. ticket, and KEYS[3], which rings for a call of all. A
# script cannot ring a bell whose key it was not given. So the answer has the ticket of the waiter that has got a call,
# and the client rings its bell by a second command on the same connection. KEYS[3] is deleted at once: a push when its
# ttl ends would wake later waiters.

# The answer if no call has reached the waiter, or a notify has called no waiter. All numbers are higher.
WAITS = 2

# More untaken calls than this are replaced by one call of all waiters below them. That may wake waiters for nothing,
# but it bounds the work of a script.
MOST_LEFT = 64

# `settle` gives each call that no living waiter has to the first waiter that may take it and has none. The call stays
# until that waiter has used it, or until it expires, so a waiter that dies does not keep it. The results are the number
# of the call of each waiter, by ticket; the calls that no waiter has; and the tickets of those that have got one now.
_CALLS = (
    """local t=redis.call("time")
local now=t[1]*1000+math.floor(t[2]/1000)
local keep=tonumber(ARGV[3])
"""
    + _STAY
    + """local function text(number) return string.format("%.0f",number) end
local function ready(ms)
redis.call("zrange",KEYS[1],0,0)
redis.call("zscore",KEYS[1],"")
redis.call("zremrangebyscore",KEYS[1],"-inf",now-keep)
redis.call("zremrangebyscore",KEYS[2],"-inf",now)
redis.call("zrem",KEYS[1],"")
redis.call("zrem",KEYS[2],"")
redis.call("zadd",KEYS[1],"XX",0,"")
redis.call("zadd",KEYS[2],"XX",0,"")
return stay(KEYS[1],ms+keep),stay(KEYS[2],ms+2*keep)
end
local function waiters()
local found=redis.call("zrange",KEYS[1],0,-1,"withscores")
local alive,highest={},0
for i=1,#found,2 do
local ticket=tonumber(found[i])
highest=math.max(highest,ticket)
if tonumber(found[i+1])>now then alive[#alive+1]=ticket end
end
table.sort(alive)
return alive,highest
end
local function calls()
local found,highest={},0
for _,member in ipairs(redis.call("zrange",KEYS[2],0,-1)) do
local number,ticket=string.match(member,"^(%d+):(.*)$")
found[#found+1]={tonumber(number),ticket,member}
highest=math.max(highest,tonumber(number))
end
table.sort(found,function(a,b) return a[1]<b[1] end)
return found,highest
end
local function settle()
local pending=calls()
if #pending==0 then return {},{},{} end
local alive=waiters()
local lives,called,left,fresh={},{},{},{}
for _,ticket in ipairs(alive) do lives[text(ticket)]=true end
for _,call in ipairs(pending) do
if call[2]=="*" then
for _,ticket in ipairs(alive) do
if ticket<call[1] and not called[text(ticket)] then called[text(ticket)]=call[1] end
end
elseif lives[call[2]] then called[call[2]]=called[call[2]] or call[1] end
end
for _,call in ipairs(pending) do
if call[2]~="*" and not lives[call[2]] then
local chosen
for _,ticket in ipairs(alive) do
if ticket>=call[1] then break end
if not called[text(ticket)] then chosen=text(ticket) break end
end
if chosen then
redis.call("zadd",KEYS[2],now+2*keep,text(call[1])..":"..chosen)
redis.call("zrem",KEYS[2],call[3])
called[chosen]=call[1]
fresh[#fresh+1]=chosen
else left[#left+1]=call end
end
end
return called,left,fresh
end
"""
)

# ARGV[1] ticket, [2] milliseconds for which the waiter counts as alive, [3] milliseconds for which calls are kept, [4]
# "1" if the ticket is new. Return the number of the waiter's call, or WAITS. If a new ticket is not above all numbers
# here, change nothing and return minus the highest one.
CALL_WAIT = Script(
    _CALLS
    + f"""local me,alive=ARGV[1],tonumber(ARGV[2])
if ARGV[4]=="1" and not redis.call("zscore",KEYS[1],me) then
local _,waiting=waiters()
local _,called=calls()
if math.max(waiting,called)>=tonumber(me) then return -math.max(waiting,called) end
end
local new=ready(alive)
redis.call("zadd",KEYS[1],now+alive,me)
if new then redis.call("pexpire",KEYS[1],alive+keep) end
local number=settle()[me]
if not number then return {WAITS} end
local mine=text(number)..":"..me
if redis.call("zscore",KEYS[2],mine) then redis.call("zadd",KEYS[2],now+alive+keep,mine) end
return number""",
    keys=3,
)

# ARGV[1] the number of the call, [2] "1" to call one waiter, "0" for all, [3] as in CALL_WAIT. Return the ticket of the
# first waiter that was called, or WAITS; or minus the highest number, as in CALL_WAIT.
CALL_NOTIFY = Script(
    _CALLS
    + f"""local call,all=tonumber(ARGV[1]),ARGV[2]=="0"
local _,waiting=waiters()
local found,called=calls()
if math.max(waiting,called)>=call then return -math.max(waiting,called) end
local _,new=ready(keep)
if all then
redis.call("del",KEYS[3])
redis.call("set",KEYS[3],"c","PX",keep)
redis.call("del",KEYS[3])
end
redis.call("zadd",KEYS[2],now+keep,text(call)..(all and ":*" or ":"))
if new then redis.call("pexpire",KEYS[2],2*keep) end
local has,left=settle()
local answer
for ticket,number in pairs(has) do
if number==call and (not answer or tonumber(ticket)<answer) then answer=tonumber(ticket) end
end
if #left>{MOST_LEFT} then
redis.call("zadd",KEYS[2],now+keep,text(left[#left][1])..":*")
for _,call in ipairs(left) do redis.call("zrem",KEYS[2],call[3]) end
end
return answer or {WAITS}""",
    keys=3,
)

# KEYS[4] the waiter's own bell, ARGV[1] ticket, [2] the number of the call that the waiter has used, or "0", [3] as in
# CALL_WAIT. The used call ends; other calls of this waiter go to other waiters. Return the ticket of the first waiter
# that has got a call, or 1.
CALL_LEAVE = Script(
    _CALLS
    + """local me,used=ARGV[1],tonumber(ARGV[2])
ready(0)
redis.call("del",KEYS[4])
for _,call in ipairs(calls()) do
if call[1]==used and call[2]~="*" then redis.call("zrem",KEYS[2],call[3])
elseif call[2]==me then
redis.call("zadd",KEYS[2],now+keep,text(call[1])..":")
redis.call("zrem",KEYS[2],call[3])
end
end
redis.call("zrem",KEYS[1],me)
local _,_,fresh=settle()
return tonumber(fresh[1] or 1)""",
    keys=4,
)

# --- latches: KEYS[1] the counts (member: a random number; score: its place), KEYS[2] exists while it is open -----
#
# Each count is a random number, so it counts once, however often it is sent or copied from one master to another. The
# member "d" has the score -1 - digest, where digest is the sum of all counts modulo 2^32: masters with equally many
# counts and the same digest have the same counts. An answer is OPEN, or 2 + counts * 2^32 + digest.

OPEN = 3
DIGESTS = 1 << 32

_LATCH = (
    _STAY
    + f"""local function size() return math.max(0,redis.call("zcard",KEYS[1])-1) end
local function digest() return -1-tonumber(redis.call("zscore",KEYS[1],"d") or -1) end
local function answer()
if redis.call("strlen",KEYS[2])>0 then return {OPEN} end
return 2+size()*{DIGESTS}+digest()
end
"""
)

LATCH_LOOK = Script(_LATCH + "return answer()", keys=2)

# ARGV[1] ttl in milliseconds, [2] the counts that open the latch, [3] and on: counts to add. Return the answer.
LATCH_ADD = Script(
    _LATCH
    + f"""local fresh=stay(KEYS[1],ARGV[1])
stay(KEYS[2],ARGV[1])
if answer()=={OPEN} then return {OPEN} end
redis.call("set",KEYS[2],"","XX")
local before,sum=size(),digest()
local all=before
for i=3,#ARGV do
if not redis.call("zscore",KEYS[1],ARGV[i]) then
all=all+1
redis.call("zadd",KEYS[1],all,ARGV[i])
sum=(sum+tonumber(ARGV[i]))%{DIGESTS}
end
end
if all>before then redis.call("zadd",KEYS[1],-1-sum,"d") end
if fresh then redis.call("pexpire",KEYS[1],ARGV[1]) end
if all>=tonumber(ARGV[2]) then redis.call("set",KEYS[2],"o","PX",ARGV[1]) end
return answer()""",
    keys=2,
)

# ARGV[1] ttl in milliseconds. Open the latch: another master has enough counts.
LATCH_OPEN = Script(
    _STAY
    + f"""stay(KEYS[2],ARGV[1])
if redis.call("strlen",KEYS[2])==0 then redis.call("set",KEYS[2],"o","PX",ARGV[1]) end
return {OPEN}""",
    keys=2,
)

# ARGV[1] a place, from 1. Return the count at this place, or 2 if there are not so many.
LATCH_AT = Script('return tonumber(redis.call("zrange",KEYS[1],ARGV[1],ARGV[1])[1] or 2)', keys=2)

# ARGV[1] a count whose call failed.
LATCH_UNDO = Script(
    _LATCH
    + f"""redis.call("zadd",KEYS[1],"XX",0,"")
local before=digest()
if redis.call("zrem",KEYS[1],ARGV[1])==1 then
redis.call("zadd",KEYS[1],-1-(before-tonumber(ARGV[1]))%{DIGESTS},"d")
end
return 1""",
    keys=2,
)

ALL = (CALL_WAIT, CALL_NOTIFY, CALL_LEAVE, LATCH_LOOK, LATCH_ADD, LATCH_OPEN, LATCH_AT, LATCH_UNDO)
