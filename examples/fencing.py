"""A database that refuses the write of a paused holder, because the UPDATE compares fences.

Run it with ``python examples/fencing.py``. It starts its own masters (``pip install '.[embedded]'``) and keeps the
stock in SQLite. The first holder pauses for longer than the ttl of its lock. Meanwhile a second holder sells an item.
When the first holder continues and writes, the database refuses the write, because it has stored a higher fence.
"""

from __future__ import annotations

import sqlite3
import time

from redlatch import Client, LockLost
from redlatch.testing import embedded


def write(database: sqlite3.Connection, left: int, fence: int) -> bool:
    """Set the stock unless a later holder has written already; return whether it was set."""
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
        # The pause stands for a garbage collection, a stopped virtual machine, a suspended laptop.
        time.sleep(0.3)
        with client.lock("sku:42", fence=True) as lock:
            assert lock.fence is not None
            print("second holder, fence", lock.fence, "sells:", write(database, 9, lock.fence))
        assert number is not None
        print("first holder, fence", number, "writes:", write(database, left - 1, number))
        try:
            paused.release()
        except LockLost as error:
            print(error)
        print("in stock:", database.execute("SELECT left FROM stock").fetchone()[0])


if __name__ == "__main__":
    main()
