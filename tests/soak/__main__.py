"""python -m tests.soak --hours 1: five masters, eight processes, a fault every three seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak.run import soak


@click.command()
@click.option("--hours", default=1.0, show_default=True, help="How long.")
@click.option("--masters", default=5, show_default=True)
@click.option("--processes", default=8, show_default=True)
@click.option("--every", default=3.0, show_default=True, help="Seconds from one fault to the next.")
@click.option("--seed", default=0, show_default=True, help="Of the faults.")
def main(hours: float, masters: int, processes: int, every: float, seed: int) -> None:
    """Print the progress every minute; fail if anything goes wrong."""
    result = soak(hours * 3600, masters, processes, every, seed, click.echo)
    click.echo(json.dumps(result.figures, indent=2))
    for wrong in result.wrong[:20]:
        click.echo(f"WRONG: {wrong}", err=True)
    sys.exit(bool(result.wrong))


if __name__ == "__main__":
    main()
