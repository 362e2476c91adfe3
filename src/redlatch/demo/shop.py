"""The shop: an unprotected stock, a ledger of the sales, and the purchase of one buyer.

The ledger gets one line per sale through O_APPEND, which no race can lose, so it is the reference for the stock. A
doomed process has written nothing when it asks to be killed, so both files stay consistent.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from redlatch.demo.process import Event, Kind

# Seconds between a buyer's read of the stock and its write, in which others nearly always read the same number.
THINKING = (0.002, 0.004)

# One call overwrites a number of fixed width, so no reader sees half a number.
_WIDTH = 8


class Shop:
    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._stock = os.open(self._folder / "stock", os.O_RDWR)
        self._ledger = os.open(self._folder / "ledger", os.O_WRONLY | os.O_APPEND)

    @classmethod
    def open(cls, folder: Path, stock: int) -> Shop:
        folder.mkdir()
        (folder / "stock").write_text(f"{stock:0{_WIDTH}d}\n")
        (folder / "ledger").touch()
        return cls(folder)

    def close(self) -> None:
        os.close(self._stock)
        os.close(self._ledger)

    def left(self) -> int:
        return int(os.pread(self._stock, _WIDTH, 0))

    def sell(self, left: int, buyer: int) -> None:
        os.pwrite(self._stock, f"{left:0{_WIDTH}d}".encode(), 0)
        os.write(self._ledger, f"{buyer}\n".encode())

    def sales(self) -> list[int]:
        return [int(line) for line in (self._folder / "ledger").read_text().splitlines()]

    def first(self, mark: str) -> bool:
        """Return True for the first call with `mark` in all processes of this sale."""
        try:
            os.close(os.open(self._folder / mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Doom:
    """Dooms this process if a buyer of it holds the lock and is the first to find `at` items left."""

    def __init__(self, shop: Shop, at: int) -> None:
        self._shop = shop
        self._at = at
        self._sealed = False

    def seals(self, left: int, wait: float | None) -> bool:
        if not self._sealed and self._at and left == self._at and self._shop.first("doomed"):
            self._sealed = True
            Event(Kind.DOOMED, wait).send()
        return self._sealed


def purchase(shop: Shop, buyer: int, doom: Doom, wait: float | None, check: Callable[[], None]) -> Iterator[float]:
    """Buy one item if any is left. Yield the seconds to pause.

    The event is sent before the lock is released, so a process that is killed afterwards has reported its sale.
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
