"""The command line of `redlatch status`, `redlatch doctor` and `redlatch masters`."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from rich.table import Table

from redlatch.arguments import (
    DRIFT_FACTOR,
    SECONDS,
    json_option,
    master_option,
    max_ttl_option,
    prefix_option,
    strict_option,
    trust_option,
    with_options,
)
from redlatch.client import Client
from redlatch.errors import ConfigurationError
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import Guard
from redlatch.health import Health
from redlatch.masters.cluster import Cluster
from redlatch.masters.listed import NO_HANDOVER, masters_of, refuse_namesakes
from redlatch.masters.master import Master
from redlatch.operate.doctor import ORDER, UNSAFE, WARNING, examine
from redlatch.operate.held import NoAnswer, console, one_or_many, states_of, table_of_locks, urls_of
from redlatch.operate.locks import LockState, Unreadable
from redlatch.operate.markers import CannotMove, Markers
from redlatch.operate.mover import Mover
from redlatch.operate.others import OtherLock, find_others
from redlatch.operate.shard_checks import examine_cluster
from redlatch.operate.shards import Shards
from redlatch.options import Options

LOOK = 0.05

NOT_READY, NOT_AVAILABLE = 1, 2

# The allowance for drift takes all of a shorter one.
SHORTEST_MAX_TTL = 0.003


drift_factor_option = click.option(
    "--drift-factor",
    type=DRIFT_FACTOR,
    default=Options.drift_factor,
    show_default=True,
    help="The largest drift_factor of the clients.",
)


named_masters = with_options(
    master_option, prefix_option, trust_option, strict_option, max_ttl_option(SHORTEST_MAX_TTL), json_option
)


@click.command()
@named_masters
@click.option("--ready", is_flag=True, help=f"Exit with {NOT_READY} unless a master may be restarted: a probe.")
@click.option(
    "--wait",
    type=SECONDS,
    default=0.0,
    help="Seconds to wait until a quorum votes, or with --ready until a master may be restarted.",
)
@click.option("--locks", is_flag=True, help="List all locks with the prefix.")
@click.argument("what", metavar="[URL|NAME]...", nargs=-1)
def status(
    ready: bool, wait: float, as_json: bool, locks: bool, what: tuple[str, ...], masters: tuple[str, ...], **named: Any
) -> None:
    """Say whether locks can be acquired, why a master has no vote, and who holds the locks NAME.

    With --prefix and without a NAME, list all locks with that prefix. Exit with 0 if a quorum of the masters votes, and
    with 2 if not; with 69 if too few answer to say who holds the locks. Name the masters exactly as the clients do.
    """
    urls = urls_of(masters, tuple(each for each in what if "://" in each))
    health = look(wait, ready, urls, **named)
    names = [os.fsencode(each) for each in what if "://" not in each]
    asked = bool(names or locks or named["prefix"])
    states, unknown = locks_of(urls, named["prefix"], names or None) if asked else ([], None)
    if as_json:
        found = None if states is None else [state.as_dict() for state in states]
        click.echo(json.dumps(health.as_dict() | ({"locks": found} if asked else {})))
    else:
        show_health(health, cluster_of(urls))
        if states:
            console().print(table_of_locks(states))
        elif asked and states is not None:
            click.echo("no lock is held")
    if unknown is not None:
        unknown.show()
        sys.exit(unknown.exit_code)
    sys.exit(exit_status(health, ready))


def locks_of(
    urls: list[str], prefix: bytes, names: list[bytes] | None
) -> tuple[list[LockState] | None, NoAnswer | None]:
    try:
        states = states_of(urls, prefix, names)
    except NoAnswer as error:
        return None, error
    unsure = ", ".join(state.name for state in states if state.unsure)
    return states, NoAnswer(f"masters that do not answer decide who holds {unsure}") if unsure else None


def show_health(health: Health, cluster: Cluster | None) -> None:
    voting = sum(master.voting for master in health.masters)
    if cluster is None:
        click.echo(f"{voting} of {len(health.masters)} masters vote, {health.quorum} must agree")
    elif health.masters:
        click.echo(f"{voting} of {len(health.masters)} nodes of the cluster vote, each on its own names")
    else:
        click.echo(f"no node says which slots it has: {why_unread(cluster)}")
    for master in health.masters:
        if not master.voting:
            click.echo(f"{master.address}: {master.why}")
        elif master.heals:
            click.echo(f"{master.address}: it is back, and locks may lack its vote for {master.heals:.1f} s more")


@click.command()
@master_option
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--strict", is_flag=True, help=f"Exit with {NOT_READY} if there are warnings.")
@json_option
@prefix_option
@drift_factor_option
@trust_option
def doctor(
    masters: tuple[str, ...],
    urls: tuple[str, ...],
    strict: bool,
    as_json: bool,
    prefix: bytes,
    drift_factor: float,
    trust_persistence: bool,
) -> None:
    """Examine masters: each finding with its cure.

    It takes and releases locks on a name of its own. Exit with 0 if all is fine, with 1 for warnings if --strict is
    given, and with 2 if locks are not safe.
    """
    named = one_or_many(urls_of(masters, urls))
    try:
        listed = masters_of(named)
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    if isinstance(listed[0], Cluster):
        with only_errors():
            found = examine_cluster(listed[0], named, drift_factor, prefix, trust_persistence)
    else:
        found = examine(listed, drift_factor, prefix, trust_persistence)
    levels = {finding.level for finding in found}
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in found]}))
    else:
        for finding in sorted(found, key=lambda finding: ORDER.index(finding.level)):
            where = f"{finding.master}: " if finding.master else ""
            click.echo(
                f"{finding.level:8} {where}{finding.text}" + (f"\n         cure: {finding.cure}" * bool(finding.cure))
            )
    sys.exit(NOT_AVAILABLE if UNSAFE in levels else NOT_READY if strict and WARNING in levels else 0)


class _Masters(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Masters)
def masters() -> None:
    """Show what masters report (show, the default), or replace them by others (move)."""


@masters.command()
@named_masters
@click.argument("urls", metavar="[URL]...", nargs=-1)
def show(as_json: bool, urls: tuple[str, ...], masters: tuple[str, ...], **named: Any) -> None:
    """Show what each master reports: its list of masters, the longest ttl in use, and since when it is marked.

    Exit with 0 if a quorum of the masters votes, and with 2 if not. Name the masters exactly as the clients do.
    """
    health = look(0.0, False, urls_of(masters, urls), **named)
    if as_json:
        click.echo(json.dumps(health.as_dict()))
    else:
        console().print(table_of(health))
    sys.exit(exit_status(health, False))


@masters.command()
@click.option("--from", "old", multiple=True, required=True, metavar="URL", help="An old master; once for each.")
@click.option("--to", "new", multiple=True, required=True, metavar="URL", help="A new master; once for each.")
@click.option("--gone", multiple=True, metavar="HOST:PORT", help="An old master that will never run again.")
@prefix_option
@drift_factor_option
@click.option("--ignore", multiple=True, metavar="KEY", help="A key that is no lock of another client; a pattern.")
@click.option("--dry-run", is_flag=True, help="Only read, and say how long the handover would take.")
def move(
    old: tuple[str, ...],
    new: tuple[str, ...],
    gone: tuple[str, ...],
    prefix: bytes,
    drift_factor: float,
    ignore: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Hand the locks of some masters over to others, without stopping the clients.

    First give all clients both lists: Client(old, next=new). Name the masters exactly as they do. During the handover
    no lock can be acquired, for the longest ttl in use and a second. Locks that are held stay valid until then, but
    cannot be renewed. If this command was interrupted, run it again: it continues.

    It waits up to a minute for locks of other clients (redis-py, for example) on the old masters. If some stay, it
    names them and refuses the handover.
    """
    try:
        lists = masters_of(list(old)), masters_of(list(new))
        if any([master.is_cluster for listed in lists for master in listed]):
            raise ConfigurationError(f"--from, --to: {NO_HANDOVER}")
        refuse_namesakes(*lists, "--to")
        known = {master.name for master in lists[0]}
        if strange := sorted(set(gone) - known):
            raise ConfigurationError(f"--gone: {', '.join(strange)} is not one of --from ({', '.join(sorted(known))})")
        mover = Mover(*lists, Markers(prefix + MARKER), frozenset(gone), drift_factor)
        mover.others, mover.say = partial(other_locks, ignore), click.echo
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    try:
        mover.run(dry_run)
    except CannotMove as error:
        raise click.ClickException(str(error)) from error


def other_locks(ignored: tuple[str, ...], masters: list[Master]) -> list[OtherLock]:
    locks, failed = find_others(masters, ignored)
    for name, error in failed.items():
        click.echo(f"{name} was not searched for locks of other clients ({error}): make sure that there are none")
    return locks


@contextmanager
def only_errors() -> Iterator[None]:
    log = logging.getLogger("redlatch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@only_errors()
def look(
    wait: float, ready: bool, urls: list[str], prefix: bytes, max_ttl: float, strict: bool, trust_persistence: bool
) -> Health:
    end = time.monotonic() + wait
    try:
        guard = Guard(max_ttl=max_ttl, strict=strict, trust_persistence=trust_persistence)
        client = Client(one_or_many(urls), prefix=prefix, guard=guard, ttl=min(Options.ttl, max_ttl))
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    try:
        with suppress(ConfigurationError):
            client.connect()
        health = client.health()
        while not (health.ready if ready else health.available) and time.monotonic() < end:
            time.sleep(LOOK)
            health = client.health()
        return health
    finally:
        client.close()


def cluster_of(urls: list[str]) -> Cluster | None:
    """Return the cluster that is named, or None for servers. The arguments are right."""
    [first, *_] = masters_of(one_or_many(urls))
    return first if isinstance(first, Cluster) else None


def why_unread(cluster: Cluster) -> str:
    try:
        Shards(cluster)
    except Unreadable as error:
        return str(error)
    return "it has begun to answer just now"


def exit_status(health: Health, ready: bool) -> int:
    if not health.available:
        return NOT_AVAILABLE
    return NOT_READY if ready and not health.ready else 0


def table_of(health: Health) -> Table:
    table = Table("master", "votes", "longest ttl", "marked", "list")
    for master in health.masters:
        table.add_row(
            master.address,
            "yes" if master.voting else f"no: {master.why}",
            f"{master.horizon:g} s" if master.horizon else "?",
            _shown_time(master.marked) if master.marked else "?",
            ", ".join(master.masters) or "?",
        )
    return table


def _shown_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "a time out of range"
