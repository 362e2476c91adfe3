"""`redlatch demo`: a flash sale with real processes, real masters and real crashes.

Many buyers in several processes want a few items. The stock is a number in an unprotected plain file. A buyer reads the
number, pauses for a moment and writes one less. Without a lock this sells more items than there are. With a lock it
must not, although the demo kills a master half-way, and then a buyer process that holds the lock, both by SIGKILL.

::

    command     the command line: options, exit status
    run         the two sales in order, the time limit, and the cleanup
    sale        one sale: starts the buyer processes, handles their events, kills a master and a buyer
    masters     the lock masters: our own, of which one is killed, or the user's
    buyer       the program of a buyer process (`python -m redlatch.demo.buyer`), threads or asyncio
    shop        the unprotected stock, the ledger of sales, and one purchase
    messages    the messages between the processes
    report      the result as a table and as JSON
    progress    the output while the demo runs

The killed master comes back empty, so it could vote a second time for a lock that is still held. The Redis
documentation asks for a "delayed restart" (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
The demo restarts the master within the lock's ttl and relies on the client's guard: it ignores the votes of such a
master until every lease that it voted for is over. The file checks nothing itself, so a buyer calls `lock.check()`
right before it writes.
"""
