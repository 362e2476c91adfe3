"""`redlatch demo`: a flash sale with real processes, real masters and real crashes.

Many buyers in several processes want a few items. The stock is a number in a plain file that nothing protects: a
buyer reads it, thinks for a moment and writes one less. Without a lock that oversells. With one it must not, although
half-way a master is killed, then a buyer process that holds the lock, both with SIGKILL.

::

    command     the command line: options, exit status
    run         the two sales in order, the time limit, and the cleaning up
    sale        one sale: starts the buyer processes, follows them, has the accidents happen
    masters     the lock masters: our own, which can be killed, or the user's
    buyer       what a buyer process runs (`python -m redlatch.demo.buyer`), threads or asyncio
    shop        the unprotected stock, the ledger of sales, and one purchase
    messages    what the processes tell each other
    report      the result as a table and as JSON;  progress: the same while it happens

What it proves and what not. The killed master comes back empty, the known danger of every quorum of masters that
keep nothing on disk: it could vote a second time for a lock that is still held. The demo starts it again only when
more than the lock's ttl has passed, the "delayed restart" that the Redis documentation asks for
(https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), so its result does not depend on luck. And
a lease protects a resource that cannot check anything itself only as far as its holders look at the clock: a buyer
asks `lock.check()` right before it writes.
"""
