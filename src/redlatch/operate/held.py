"""The command lines of `redlatch unlock` and `redlatch top`, and the output of locks."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from redlatch.arguments import NAME, Number, master_option, prefix_option
from redlatch.errors import ConfigurationError
from redlatch.masters.cluster import Cluster
from redlatch.masters.listed import masters_from_env, masters_of
from redlatch.masters.master import Master
from redlatch.operate.ending import end
from redlatch.operate.locks import LockState, Unreadable, combine, names_on, on_each, read
from redlatch.operate.shards import Shards
from redlatch.votes.key import key_of
from redlatch.votes.units import quorum_of

NOT_HELD, NO_QUORUM = 1, 69


WIDTH = 140


def console() -> Console:
    # Brackets in names and owners are no markup.
    made = Console(emoji=False, markup=False, highlight=False)
    if not made.is_terminal:
        made.width = WIDTH
    return made


class NoAnswer(click.ClickException):
    exit_code = NO_QUORUM


def urls_of(*given: tuple[str, ...]) -> list[str]:
    try:
        return [url for urls in given for url in urls] or [masters_from_env()]
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def one_or_many(urls: list[str]) -> Any:
    # A single string may have several URLs.
    return urls if len(urls) != 1 else urls[0]


def states_of(urls: list[str], prefix: bytes, names: list[bytes] | None) -> list[LockState]:
    """Return the states of the locks with these names; None finds all that are held or waited for."""
    try:
        masters = masters_of(one_or_many(urls))
        keys = None if names is None else [key_of(prefix, name) for name in names]
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    if isinstance(masters[0], Cluster):
        states = _states_in(masters[0], prefix, keys)
        return states if names is not None else [state for state in states if _is_in_use(state)]
    if keys is None:
        keys = sorted(set().union(*_of_quorum(masters, partial(names_on, prefix=prefix))))
    answers = _of_quorum(masters, lambda server: [read(server, key) for key in keys])
    states = [combine(key, [answer[place] for answer in answers], len(masters)) for place, key in enumerate(keys)]
    return states if names is not None else [state for state in states if _is_in_use(state)]


def _is_in_use(state: LockState) -> bool:
    return bool(state.kind or state.waiting or state.split)


def _states_in(cluster: Cluster, prefix: bytes, keys: list[bytes] | None) -> list[LockState]:
    try:
        shards = Shards(cluster)
        keys = sorted(shards.names(prefix)) if keys is None else keys
        found = shards.read(keys)
    except Unreadable as error:
        raise NoAnswer(f"a node that is needed to say who holds what does not answer: {error}") from error
    return [replace(combine(key, [told], 1), node=node) for key, (node, told) in zip(keys, found, strict=True)]


def _of_quorum(masters: list[Master], work: Any) -> list[Any]:
    answers, failed = on_each(masters, work)
    if len(answers) < quorum_of(len(masters)):
        each = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise NoAnswer(f"{len(answers)} of {len(masters)} masters answer, too few to say who holds what: {each}")
    return answers


def _fails(status: int, text: str) -> click.ClickException:
    error = click.ClickException(text)
    error.exit_code = status  # type: ignore[misc]
    return error


def table_of_locks(states: list[LockState]) -> Table:
    in_cluster = any(state.node for state in states)
    table = Table("lock", "kind", "held by", "for", "runs out in", "fence", "waiting", *["node"] * in_cluster)
    for state in states:
        lines = [(holder.owner or "?", seconds(holder.held_for), seconds(holder.ttl_left)) for holder in state.holders]
        for place, line in enumerate(lines or [(without_holder(state), "", "")]):
            head = (state.name, state.kind) if not place else ("", "")
            tail = (str(state.fence or ""), str(state.waiting or ""), state.node) if not place else ("", "", "")
            table.add_row(*head, *line, *tail[: 2 + in_cluster])
    return table


def without_holder(state: LockState) -> str:
    if state.unsure:
        return "unknown: masters that do not answer decide"
    return "nobody, the masters disagree" if state.split else "nobody"


def seconds(value: float | None) -> str:
    return "?" if value is None else "for ever" if value == float("inf") else f"{value:.1f} s"


@click.command()
@click.argument("name")
@master_option
@prefix_option
@click.option("--if-owner", type=NAME, metavar="OWNER", help="Only what this owner holds.")
@click.option("--if-fence", type=int, metavar="N", help="Only if this is the highest fence.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def unlock(
    name: str, masters: tuple[str, ...], prefix: bytes, if_owner: str | None, if_fence: int | None, yes: bool
) -> None:
    """Take the lock NAME from its holder.

    The holder notices the loss with its next renewal, or when its lease ends, and may act until then. Exit with 1 if
    the lock is free, or its holder is not the one given.
    """
    urls = urls_of(masters)
    [state] = states_of(urls, prefix, [os.fsencode(name)])
    owners = [holder.owner for holder in state.holders]
    if not state.kind and not state.split:
        raise _fails(NOT_HELD, f"nobody holds {state.name!r}")
    if if_owner is not None and if_owner not in owners and not state.split:
        raise _fails(NOT_HELD, f"{state.name!r} is held by {', '.join(map(repr, owners))}, not by {if_owner!r}")
    if if_fence is not None and if_fence != state.fence:
        found = "has no fence" if state.fence is None else f"has the highest fence {state.fence}"
        raise _fails(NOT_HELD, f"{state.name!r} {found}, not {if_fence}")
    for holder in state.holders:
        click.echo(f"{state.name}: {holder}, and it runs out in {seconds(holder.ttl_left)}")
    if not yes and not click.confirm("Take it away?", err=True):
        sys.exit(NOT_HELD)
    sys.exit(_take_away(masters_of(one_or_many(urls)), state, key_of(prefix, os.fsencode(name)), if_owner))


def _take_away(masters: list[Master], state: LockState, key: bytes, owner: str | None) -> int:
    if isinstance(masters[0], Cluster):
        try:
            node, number = Shards(masters[0]).end(key, state.tokens, owner)
        except Unreadable as error:
            raise NoAnswer(f"it is not known whether {state.name!r} was deleted: {error}") from error
        click.echo(f"{state.name}: {'deleted' if number else 'nothing was deleted'} on {node}")
        return 0 if number else NOT_HELD
    ended, failed = on_each(masters, partial(end, key=key, tokens=state.tokens, owner=owner))
    size = len(ended) + len(failed)
    click.echo(f"{state.name}: deleted on {sum(map(bool, ended))} of {size} masters")
    for master, failure in failed.items():
        click.echo(f"{master}: {failure}", err=True)
    if len(ended) < quorum_of(size):
        return NO_QUORUM
    return 0 if any(ended) else NOT_HELD


Holders = frozenset[tuple[str, int]]


class Watch:
    """Counts how often the holders of each lock have changed between looks."""

    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()
        self._holders: dict[str, Holders] = {}

    def note(self, states: list[LockState], now: float) -> None:
        found = {state.name: _holders_of(state, now) for state in states}
        for name in found.keys() | self._holders.keys():
            before, after = self._holders.get(name), found.get(name, frozenset())
            if before is not None and after - before:
                self.changes[name] += len(after - before)
            if name in found:
                self._holders[name] = after or (before or frozenset())


def _holders_of(state: LockState, now: float) -> Holders:
    return frozenset((holder.owner, round(now - (holder.held_for or 0.0))) for holder in state.holders)


def table_of(states: list[LockState], watch: Watch) -> Table:
    held = sum(bool(state.holders) for state in states)
    title = "1 lock is held" if held == 1 else f"{held} locks are held"
    in_cluster = any(state.node for state in states)
    columns = "lock", "kind", "held by", "for", "runs out in", "waiting", "changes", *["node"] * in_cluster
    table = Table(*columns, title=title)
    for state in sorted(states, key=lambda state: (-state.waiting, -watch.changes[state.name], state.name)):
        owners = ", ".join(sorted({holder.owner or "?" for holder in state.holders})) or without_holder(state)
        longest = max([holder.held_for for holder in state.holders if holder.held_for is not None], default=None)
        last = max([holder.ttl_left for holder in state.holders], default=0.0)
        since, until = (seconds(longest), seconds(last)) if state.holders else ("", "")
        many = f" ({len(state.holders)})" if len(state.holders) > 1 else ""
        changes, node = str(watch.changes[state.name] or ""), [state.node] * in_cluster
        table.add_row(state.name, state.kind, owners + many, since, until, str(state.waiting or ""), changes, *node)
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
