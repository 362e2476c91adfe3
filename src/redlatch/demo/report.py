"""The result of the demo, as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from redlatch.demo.fleet import Fleet, count
from redlatch.demo.sale import Order, Tally
from redlatch.demo.shop import THINKING


def percentile(values: Sequence[float], percent: float) -> float:
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass(frozen=True)
class Result:
    order: Order
    without: Tally
    locked: Tally
    masters: Fleet

    @property
    def exact(self) -> bool:
        return self.locked.sold == self.locked.stock and self.locked.left == 0

    def to_json(self) -> str:
        # `*_ms` are milliseconds, other times seconds.
        locked = self.locked
        return json.dumps(
            {
                "stock": self.order.stock,
                "buyers": self.order.buyers,
                "sold_without_lock": self.without.sold,
                "oversold_without_lock": self.without.oversold,
                "sold": locked.sold,
                "oversold": locked.oversold,
                "acquisitions": len(locked.waits),
                "lost_leases": locked.lost_leases,
                "unanswered": locked.unanswered,
                "seconds": round(locked.seconds, 3),
                "seconds_halted": round(locked.halted, 3),
                "acquisitions_per_second": round(len(locked.waits) / locked.seconds, 1),
                "wait_p50_ms": round(percentile(locked.waits, 50) * 1000, 3),
                "wait_p99_ms": round(percentile(locked.waits, 99) * 1000, 3),
                "masters": self.masters.size,
                "cluster": self.masters.fails_over,
                "quorum": self.masters.quorum,
                "events": [{"seconds": round(seconds, 3), "event": what} for seconds, what in locked.history],
                "impl": locked.impl,
            }
        )

    def show(self, console: Console) -> None:
        console.print(self._figures())
        console.print()
        console.print(self._history())
        console.print(self._verdict())

    def _figures(self) -> Table:
        order, without, locked = self.order, self.without, self.locked
        table = Table(
            title=f"Flash sale: {order.buyers} buyers, {count(order.stock, 'item')}",
            box=box.SIMPLE_HEAD,
            title_justify="left",
        )
        table.add_column("")
        table.add_column("without a lock", justify="right")
        table.add_column("with redlatch", justify="right")
        table.add_row("items in stock", str(order.stock), str(order.stock))
        table.add_row("items sold", str(without.sold), str(locked.sold))
        table.add_row("oversold", _alarm(without.oversold), _alarm(locked.oversold), end_section=True)
        table.add_row("seconds", f"{without.seconds:.2f}", f"{locked.seconds:.2f}")
        table.add_row("of them stopped by the killed buyer", "-", f"{locked.halted:.2f}")
        table.add_row("lock acquisitions", "-", str(len(locked.waits)))
        table.add_row("acquisitions per second", "-", f"{len(locked.waits) / locked.seconds:.0f}")
        table.add_row("wait for the lock, p50", "-", f"{percentile(locked.waits, 50) * 1000:.1f} ms")
        table.add_row("wait for the lock, p99", "-", f"{percentile(locked.waits, 99) * 1000:.1f} ms")
        if locked.lost_leases:
            table.add_row("leases lost before the write", "-", str(locked.lost_leases))
        if locked.unanswered:
            table.add_row("attempts without a quorum's answer", "-", str(locked.unanswered))
        table.caption = (
            f"{self.masters.terms()}; lease {order.ttl:g} s; implementation: {locked.impl}. All buyers start at once, "
            f"and each keeps the lock for {THINKING[0] * 1000:g}-{THINKING[1] * 1000:g} ms. So a wait is mostly the "
            "time of the buyers before, and the stop after a buyer was killed while it held the lock."
        )
        table.caption_justify = "left"
        return table

    def _history(self) -> Table:
        table = Table(title="What happened during the sale with redlatch", box=None, title_justify="left")
        table.add_column("at", justify="right")
        table.add_column("")
        for seconds, what in self.locked.history:
            table.add_row(f"{seconds:.2f} s", what)
        if not self.masters.killable:
            table.add_row("", self._why_no_master_died())
        return table

    def _why_no_master_died(self) -> str:
        if not self.masters.own:
            return "no master was killed, because they are your own servers"
        return f"no master was killed: of {self.masters.size} none may fail; this needs 3 masters or more"

    def _verdict(self) -> str:
        locked = self.locked
        if self.exact:
            died = (
                f"first a {'primary' if self.masters.fails_over else 'master'} and then a buyer"
                if self.masters.killable
                else "a buyer"
            )
            return (
                f"\n[bold green]Sold exactly {locked.sold} of {locked.stock}, although {died} was killed half-way.[/]"
            )
        return (
            f"\n[bold red]Wrong: {locked.sold} of {locked.stock} items sold, and the stock says {locked.left} left.[/]"
        )


def _alarm(oversold: int) -> str:
    return f"[bold red]{oversold}[/]" if oversold else f"[bold green]{oversold}[/]"
