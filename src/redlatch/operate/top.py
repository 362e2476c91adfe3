"""The command line of `redlatch top`: a live view of the locks that are held or waited for."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from contextlib import nullcontext

import click
from rich.live import Live
from rich.table import Table

from redlatch.arguments import Number, master_option, prefix_option
from redlatch.operate.command import console
from redlatch.operate.held import seconds, states_of, urls_of, without_holder
from redlatch.operate.locks import LockState

# The owners, and the seconds in which they acquired the lock.
Holders = frozenset[tuple[str, int]]


class Watch:
    """Compares successive looks at the locks; `changes` counts how often the holders of each lock have changed."""

    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()
        self._holders: dict[str, Holders] = {}

    def note(self, states: list[LockState], now: float) -> None:
        found = {state.name: _holders_of(state, now) for state in states}
        for name in found.keys() | self._holders.keys():
            before, after = self._holders.get(name), found.get(name, frozenset())
            # A lock that becomes free has no new owner yet.
            if before is not None and after - before:
                self.changes[name] += len(after - before)
            if name in found:
                self._holders[name] = after or (before or frozenset())


def _holders_of(state: LockState, now: float) -> Holders:
    return frozenset((holder.owner, round(now - (holder.held_for or 0.0))) for holder in state.holders)


def table_of(states: list[LockState], watch: Watch) -> Table:
    """Put the locks with most waiters first, then those with most changes."""
    held = sum(bool(state.holders) for state in states)
    title = "1 lock is held" if held == 1 else f"{held} locks are held"
    table = Table("lock", "kind", "held by", "for", "runs out in", "waiting", "changes", title=title)
    for state in sorted(states, key=lambda state: (-state.waiting, -watch.changes[state.name], state.name)):
        owners = ", ".join(sorted({holder.owner or "?" for holder in state.holders})) or without_holder(state)
        longest = max([holder.held_for for holder in state.holders if holder.held_for is not None], default=None)
        last = max([holder.ttl_left for holder in state.holders], default=0.0)
        since, until = (seconds(longest), seconds(last)) if state.holders else ("", "")
        many = f" ({len(state.holders)})" if len(state.holders) > 1 else ""
        changes = str(watch.changes[state.name] or "")
        table.add_row(state.name, state.kind, owners + many, since, until, str(state.waiting or ""), changes)
    return table


@click.command()
@master_option
@prefix_option
@click.option("--every", type=Number(min=0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--looks", type=click.IntRange(min=1), help="End after so many looks. Default: with Ctrl-C.")
@click.argument("urls", metavar="[URL]...", nargs=-1)
def top(masters: tuple[str, ...], urls: tuple[str, ...], prefix: bytes, every: float, looks: int | None) -> None:
    """Show the locks that are held or waited for, live.

    A change is a holder that the look before did not see. A look reads all keys with the prefix, so give one where the
    servers have many others. Exit with 69 if too few masters answer to say which locks are held.
    """
    listed, watch = urls_of(masters, urls), Watch()
    out = console()
    # Without a terminal, `Live` writes nothing before its end.
    shown = Live(console=out, auto_refresh=False) if out.is_terminal else nullcontext()
    with shown as live:
        for look in itertools.count(1):
            states = states_of(listed, prefix, None)
            watch.note(states, time.time())
            if live is None:
                out.print(table_of(states, watch))
            else:
                live.update(table_of(states, watch), refresh=True)
            if look == looks:
                return
            time.sleep(every)
