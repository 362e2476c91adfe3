"""The command line of `redlatch status` and `redlatch masters`: what a client finds when it connects to masters."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from redlatch.client import Client
from redlatch.errors import ConfigurationError
from redlatch.guard.settings import Guard
from redlatch.health import Health

# The number of columns when the output is not a terminal.
WIDTH = 140

# Seconds between two looks while `--wait` lasts.
LOOK = 0.05

NOT_READY, NOT_AVAILABLE = 1, 2


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name masters as a client of them does."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--max-ttl", default=60.0, show_default=True, help="max_ttl of the clients' guard, in seconds."),
        click.option("--strict", is_flag=True, help="The clients' guard is strict."),
        click.option("--trust-persistence", is_flag=True, help="The clients' guard trusts persistence."),
        click.option("--prefix", default="", help="Prefix of the clients' keys."),
        click.argument("urls", metavar="URL...", nargs=-1, required=True),
    ):
        command = option(command)
    return command


@click.command()
@_options
@click.option("--ready", is_flag=True, help=f"Exit with {NOT_READY} unless all masters vote: a probe between restarts.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Seconds to wait until all masters vote, or without --ready a quorum does.",
)
def status(ready: bool, wait: float, as_json: bool, **named: Any) -> None:
    """Say whether locks can be had, and why a master has no vote.

    Exit with 0 if a quorum of the masters votes, and with 2 if not. Name the masters exactly as the clients do.
    """
    health = look(wait, ready, **named)
    if as_json:
        click.echo(json.dumps(health.as_dict()))
    else:
        voting = sum(master.voting for master in health.masters)
        click.echo(f"{voting} of {len(health.masters)} masters vote, {health.quorum} must agree")
        for master in health.masters:
            if not master.voting:
                click.echo(f"{master.address}: {master.why}")
    sys.exit(exit_status(health, ready))


@click.command()
@_options
def masters(as_json: bool, **named: Any) -> None:
    """Show what each master says of itself: its list, the longest ttl in use, and since when it is marked.

    Exit with 0 if a quorum of the masters votes, and with 2 if not. Name the masters exactly as the clients do.
    """
    health = look(0.0, False, **named)
    if as_json:
        click.echo(json.dumps(health.as_dict()))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = WIDTH
        console.print(table_of(health), highlight=False, markup=False)
    sys.exit(exit_status(health, False))


def look(
    wait: float, ready: bool, urls: tuple[str, ...], prefix: str, max_ttl: float, strict: bool, trust_persistence: bool
) -> Health:
    """Connect to the masters as a client does; return what it finds, as soon as they vote or the time is over."""
    # A warning of each master would say what is printed anyway.
    logging.getLogger("redlatch").setLevel(logging.ERROR)
    end = time.monotonic() + wait
    try:
        guard = Guard(max_ttl=max_ttl, strict=strict, trust_persistence=trust_persistence)
        client = Client(list(urls), prefix=prefix, guard=guard, ttl=min(10.0, max_ttl))
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    try:
        with suppress(ConfigurationError):  # the health has it, too
            client.connect()
        health = client.health()
        while not (health.ready if ready else health.available) and time.monotonic() < end:
            time.sleep(LOOK)
            health = client.health()
        return health
    finally:
        client.close()


def exit_status(health: Health, ready: bool) -> int:
    """Return the exit status of a command."""
    if not health.available:
        return NOT_AVAILABLE
    return NOT_READY if ready and not health.ready else 0


def table_of(health: Health) -> Table:
    """Return the table of all masters."""
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
    except (ValueError, OverflowError, OSError):  # any client may have written the marker
        return "a time out of range"
