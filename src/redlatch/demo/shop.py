"""The shop: a stock that nothing protects, a ledger of what was sold, and how one buyer buys.

The stock is a number in a plain file. The ledger beside it gets one line per sale by O_APPEND, which no race can lose,
so it is the truth that the stock is judged by.

The two stay consistent when a process is killed because no process is killed while it writes: the one that is to die
stops inside the critical section before it has written anything (`Doom`), from then on no buyer of that process
writes any more, and only then does it ask to be killed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from redlatch.demo.messages import Event, Kind

# How long a buyer thinks between reading the stock and writing it, seconds. Short enough that a sale is over soon, long
# enough that without a lock the others practically always read the same number meanwhile.
THINKING = (0.002, 0.004)

_WIDTH = 8  # digits of the stock; a fixed width is overwritten in one call, so nobody reads half a number


class Shop:
    """The files of one sale; every process opens its own."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._stock = os.open(self._folder / "stock", os.O_RDWR)
        self._ledger = os.open(self._folder / "ledger", os.O_WRONLY | os.O_APPEND)

    @classmethod
    def open(cls, folder: Path, stock: int) -> Shop:
        """Lay out `stock` items and an empty ledger in `folder`."""
        folder.mkdir()
        (folder / "stock").write_text(f"{stock:0{_WIDTH}d}\n")
        (folder / "ledger").touch()
        return cls(folder)

    def close(self) -> None:
        """Close the files."""
        os.close(self._stock)
        os.close(self._ledger)

    def left(self) -> int:
        """Read how many items the stock says are left."""
        return int(os.pread(self._stock, _WIDTH, 0))

    def sell(self, left: int, buyer: int) -> None:
        """Write that `left` items are left, then the sale to `buyer`."""
        os.pwrite(self._stock, f"{left:0{_WIDTH}d}".encode(), 0)
        os.write(self._ledger, f"{buyer}\n".encode())

    def sales(self) -> list[int]:
        """Read the ledger: the buyer of each sale."""
        return [int(line) for line in (self._folder / "ledger").read_text().splitlines()]

    def first(self, mark: str) -> bool:
        """Say whether this is the first call with `mark` in any process of this sale."""
        try:
            os.close(os.open(self._folder / mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Doom:
    """Decides, for one process, whether it is the one that dies in the middle of the sale.

    It does when one of its buyers, holding the lock, is the first to find `at` items left (0: never).
    """

    def __init__(self, shop: Shop, at: int) -> None:
        self._shop = shop
        self._at = at
        self._sealed = False

    def seals(self, left: int, wait: float | None) -> bool:
        """Say whether this buyer must stop here and never write; announce it the first time."""
        if not self._sealed and self._at and left == self._at and self._shop.first("doomed"):
            self._sealed = True
            Event(Kind.DOOMED, wait).send()
        return self._sealed


def purchase(shop: Shop, buyer: int, doom: Doom, wait: float | None, check: Callable[[], None]) -> Iterator[float]:
    """Buy one item if there is one, yielding the seconds to pause; threads and asyncio pause each in their way.

    The event is sent before the lock goes, so that even a process killed right afterwards has told of its sale.

    Args:
        shop: where to buy.
        buyer: who buys.
        doom: whether this process has to die instead.
        wait: the seconds the lock took, None without a lock.
        check: raises when the lease is over; asked right before writing.

    Raises:
        LockLost: what `check` raised; nothing was written.
    """
    left = shop.left()
    while doom.seals(left, wait):
        yield 60.0
    if left < 1:
        Event(Kind.EMPTY, wait).send()
        return
    yield random.uniform(*THINKING)
    check()
    shop.sell(left - 1, buyer)
    Event(Kind.BOUGHT, wait).send()
