"""python -m tests.soak.operations --only move --times 200: everyday operations, repeated under load."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.campaign import Campaign
from soak.sites import SITES
from soak.worker import Options


@click.command()
@click.option("--only", type=click.Choice(list(SITES)), multiple=True, help="Only this kind; all kinds if not given.")
@click.option("--times", default=100, show_default=True, help="How often each operation is done.")
@click.option("--processes", default=4, show_default=True)
@click.option("--ttl", default=0.5, show_default=True, help="Of the locks, in seconds.")
@click.option("--max-ttl", default=2.0, show_default=True, help="Of the clients' guard, in seconds.")
@click.option(
    "--long", default=0.02, show_default=True, help="The share of holders that stay for half a ttl or longer."
)
@click.option("--longest", default=6.0, show_default=True, help="For how many ttls some of them stay.")
@click.option(
    "--without-guard", is_flag=True, help="The processes have no guard: it shows that second holders are found."
)
@click.option("--seed", default=0, show_default=True, help="Of the choice of servers.")
def main(
    only: tuple[str, ...],
    times: int,
    processes: int,
    ttl: float,
    max_ttl: float,
    long: float,
    longest: float,
    without_guard: bool,
    seed: int,
) -> None:
    """Print the figures of each kind of operation; fail if anything goes wrong.

    While the servers are operated on, processes lock and unlock a few names. The longest wait includes that for holders
    that stay; see --long.
    """
    # Masters come and go all the time.
    logging.getLogger("redlatch").setLevel(logging.ERROR)
    failed = False
    stays = (0.5, 1.2, longest)
    options = Options([], ["stock"], ttl, max_ttl, timeout=30.0, long=long, stays=stays, guarded=not without_guard)
    for name in only or SITES:
        campaign = Campaign(name, options, processes, seed, lambda line: click.echo(line, err=True))
        figures = campaign.run(times)
        click.echo(f"{name}: {json.dumps(figures)}")
        failed = failed or bool(campaign.wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
