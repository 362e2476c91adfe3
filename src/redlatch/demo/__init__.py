"""`redlatch demo`: a flash sale with real processes, real masters and real crashes.

Many buyers in several processes want a few items. The stock is a number in an unprotected plain file: a buyer reads it,
pauses for a moment and writes one less. Without a lock this sells more items than there are. With a lock it must not,
although the demo kills a master half-way, and then a buyer process that holds the lock, both by SIGKILL.

The killed master comes back empty within the lock's ttl, so it could vote a second time for a lock that is still held.
The client's guard ignores its votes until every lease that it voted for is over ("delayed restart" in
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). The file checks nothing itself, so a buyer
calls `lock.check()` right before it writes.
"""
