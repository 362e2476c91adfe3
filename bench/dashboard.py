"""Draw the panels of the Grafana dashboard, for docs/metrics.md: `python bench/dashboard.py [--minutes 4]`.

It starts five masters, three clients and a Prometheus. After a while it kills a master, which comes back without its
data, and later it stops three masters for some seconds. Then it asks Prometheus the queries of the dashboard, and draws
each panel with matplotlib.

The program `prometheus` must be on the path (Debian: apt install prometheus), and the extras "bench" and "prometheus"
must be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import prometheus_client

import redlatch
import redlatch.metrics
from bench.plots import saved, style
from redlatch.testing import embedded

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results"

CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: shop
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""

# What stands for the variables of the dashboard.
VARIABLES = {"$__rate_interval": "15s", "$job": ".*", "$group": ".*"}

UNITS = {"s": "s", "ops": "per second", "short": ""}


# --- the programs --------------------------------------------------------------------------------------


def sell(client: redlatch.Client, number: int, over: threading.Event) -> None:
    """Lock few names from many threads, as a shop that sells few things to many."""
    while not over.wait(0.02):
        try:
            with client.lock(f"sku:{number % 3}", ttl=5.0, timeout=1.0, group="sku"):
                time.sleep(0.01)
        except (redlatch.LockTimeout, redlatch.QuorumUnavailable):
            over.wait(0.2)


def report(client: redlatch.Client, number: int, over: threading.Event) -> None:
    """Hold a lock for long, and have it renewed."""
    while not over.is_set():
        try:
            with client.lock(f"report:{number}", ttl=3.0, timeout=5.0, auto_renew=True, group="report"):
                over.wait(7.0 + 10.0 * number)
        except redlatch.LockError:
            over.wait(0.5)


async def poll(client: redlatch.AsyncClient, number: int, over: threading.Event) -> None:
    """Try one lock from several tasks, and go on without it."""
    while not over.is_set():
        lock = client.lock("leader", ttl=2.0, group="leader")
        try:
            if await lock.acquire(blocking=False):
                await asyncio.sleep(0.6)
                await lock.release()
        except redlatch.LockError:
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.1 + 0.05 * number)


async def elect(masters: list[str], over: threading.Event) -> None:
    """Run the tasks that try one lock."""
    async with redlatch.AsyncClient(masters) as client:
        with redlatch.metrics.prometheus(client):
            await asyncio.gather(*[poll(client, number, over) for number in range(4)])


@contextlib.contextmanager
def programs(masters: list[str]) -> Iterator[None]:
    """Run all programs, in threads of this process."""
    over = threading.Event()
    with redlatch.Client(masters) as first, redlatch.Client(masters) as second:
        redlatch.metrics.prometheus(first)
        redlatch.metrics.prometheus(second)
        threads = [threading.Thread(target=asyncio.run, args=[elect(masters, over)])]
        for client in (first, second):
            threads += [threading.Thread(target=sell, args=[client, number, over]) for number in range(6)]
            threads += [threading.Thread(target=report, args=[client, number, over]) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


# --- Prometheus ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def scraped(port: int, folder: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes a port; yield its address."""
    program = shutil.which("prometheus")
    if program is None:
        sys.exit("bench/dashboard.py needs the program prometheus on the path (Debian: apt install prometheus)")
    (folder / "prometheus.yml").write_text(CONFIG % port)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stderr=log, stdout=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def ask(prometheus: str, query: str, start: float, end: float) -> list[dict[str, Any]]:
    """Return the series of a query."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    asked = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": "2s"})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}") as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


# --- the picture ---------------------------------------------------------------------------------------


def draw(dashboard: dict[str, Any], prometheus: str, start: float, end: float) -> list[Path]:
    """Draw all panels, two beside each other, below the titles of their rows; return the files."""
    from matplotlib import pyplot

    rows: list[tuple[str, list[dict[str, Any]]]] = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            rows.append((panel["title"], []))
        else:
            rows[-1][1].append(panel)
    heights = [len(panels) // 2 for _, panels in rows]
    figure = pyplot.figure(figsize=(11, 2.6 * sum(heights)), layout="constrained")
    parts = figure.subfigures(len(rows), 1, height_ratios=heights)
    for part, height, (title, panels) in zip(parts, heights, rows, strict=True):
        part.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        for axes, panel in zip(part.subplots(height, 2).flat, panels, strict=True):
            draw_panel(axes, panel, prometheus, start, end)
    return saved(figure, RESULTS, "dashboard")


def draw_panel(axes: Any, panel: dict[str, Any], prometheus: str, start: float, end: float) -> None:
    """Draw one panel as Grafana does: a line for each series, and a legend below. Lines at 0 have no legend here."""
    axes.set_title(panel["title"], loc="left")
    axes.set_ylabel(UNITS[panel["fieldConfig"]["defaults"]["unit"]])
    for target in panel["targets"]:
        for series in ask(prometheus, target["expr"], start, end):
            points = [(float(moment) - start, float(value)) for moment, value in series["values"]]
            legend = re.sub(
                r"{{(\w+)}}", lambda name, labels=series["metric"]: labels.get(name[1], ""), target["legendFormat"]
            )
            seen = any(value > 0 for _, value in points)
            axes.plot(*zip(*points, strict=True), label=legend if seen else "_", linewidth=1.2)
    axes.set(xlim=(0, end - start), xlabel="seconds")
    axes.set_ylim(bottom=0)
    if any(not line.get_label().startswith("_") for line in axes.lines):
        axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the panels of the Grafana dashboard.")
    parser.add_argument("--minutes", type=float, default=4.0)
    seconds = parser.parse_args().minutes * 60
    dashboard = json.loads(files("redlatch.metrics").joinpath("grafana.json").read_text())
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1")
    masters = embedded.masters(5)
    with (
        tempfile.TemporaryDirectory() as folder,
        masters as urls,
        scraped(server.server_port, Path(folder)) as prometheus,
        programs(urls),
    ):
        start = time.time()
        time.sleep(seconds / 4)
        # One master forgets everything: the guard keeps it out for a while.
        masters.kill(0)
        time.sleep(seconds / 24)
        masters.start(0)
        time.sleep(seconds / 4)
        # A majority is silent for a while.
        for index in (2, 3, 4):
            masters.pause(index)
        time.sleep(seconds / 24)
        for index in (2, 3, 4):
            masters.resume(index)
        time.sleep(seconds / 2)
        with style():
            drawn = draw(dashboard, prometheus, start, time.time())
    server.shutdown()
    thread.join()
    print("wrote", *[path.relative_to(ROOT) for path in drawn])


if __name__ == "__main__":
    main()
