"""The command line of `redlatch demo`."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource
from rich.console import Console

from redlatch.arguments import Number
from redlatch.demo.progress import Display
from redlatch.demo.run import Stopped, run_demo
from redlatch.demo.sale import DemoFailed
from redlatch.errors import ConfigurationError

# More buyers would measure the scheduler and not the lock.
MOST_BUYERS = 2000


@click.command()
@click.option("--stock", type=click.IntRange(min=1), default=100, show_default=True, help="Items for sale.")
@click.option(
    "--buyers",
    type=click.IntRange(min=2, max=MOST_BUYERS),
    default=400,
    show_default=True,
    help="Buyers who want one item each. Must be more than --stock.",
)
@click.option(
    "--masters",
    type=click.IntRange(min=1, max=99),
    default=5,
    show_default=True,
    help="Lock masters to start. With 3 or more, the demo kills one half-way.",
)
@click.option(
    "--servers",
    metavar="URL...",
    multiple=True,
    help="Lock on these servers instead, such as redis://10.0.0.1. The demo kills none of them. Repeatable.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Lock on a cluster that the demo starts. The lock's slot moves, and its primary is killed.",
)
@click.option(
    "--seconds",
    type=Number(min=5, max=3600),
    default=60.0,
    show_default=True,
    help="Time limit for the whole demo, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.argument("more_servers", metavar="", nargs=-1)
@click.pass_context
def demo(
    context: click.Context,
    stock: int,
    buyers: int,
    masters: int,
    servers: tuple[str, ...],
    cluster: bool,
    seconds: float,
    as_json: bool,
    more_servers: tuple[str, ...],
) -> None:
    """Hold a flash sale, first without a lock, then with one.

    Many buyers, threads and asyncio tasks of several processes, want one item each from a shop. Its stock is an
    unprotected file. Without a lock it sells more than that. With redlatch it must sell exactly its stock, although
    half-way a lock master is killed, and then a buyer process that holds the lock. Exit status: 0 if it did, 1 if not.
    """
    if buyers <= stock:
        raise click.UsageError(f"--buyers must be more than --stock: {buyers} buyers cannot fight for {stock} items.")
    if more_servers and not servers:
        raise click.UsageError(f"Unexpected argument {more_servers[0]!r}; URLs of servers go after --servers.")
    if servers and context.get_parameter_source("masters") is not ParameterSource.DEFAULT:
        raise click.UsageError("--masters starts masters and --servers uses yours; give one of them.")
    if cluster and (servers or context.get_parameter_source("masters") is not ParameterSource.DEFAULT):
        raise click.UsageError("--cluster starts a cluster; leave out --masters and --servers.")
    try:
        with Display(Console(stderr=True)) as display:
            result = run_demo(stock, buyers, masters, (*servers, *more_servers), seconds, display, cluster)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from error
    except DemoFailed as error:
        raise click.ClickException(str(error)) from error
    except Stopped as stop:
        click.echo("Stopped; no process and no file is left.", err=True)
        sys.exit(stop.status)
    if as_json:
        click.echo(result.to_json())
    else:
        result.show(Console())
    sys.exit(0 if result.exact else 1)
