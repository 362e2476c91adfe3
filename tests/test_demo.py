"""`redlatch demo` as a user runs it: real processes, real masters, real kills, and small sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlatch.demo.process import Event, Face, Kind, Plan
from redlatch.demo.report import percentile
from redlatch.demo.sale import Order
from redlatch.demo.shop import Doom, Shop, purchase
from redlatch.testing import embedded

pytest.importorskip("click")

SMALL = ("--stock", "10", "--buyers", "40")
COMMAND = (sys.executable, "-m", "redlatch.cli", "demo")

# Far more than a run takes on a loaded machine, far less than the limit of a CI job.
PATIENCE = 90

REPORTED = {
    "stock",
    "buyers",
    "sold_without_lock",
    "oversold_without_lock",
    "sold",
    "oversold",
    "acquisitions",
    "lost_leases",
    "unanswered",
    "seconds",
    "seconds_halted",
    "acquisitions_per_second",
    "wait_p50_ms",
    "wait_p99_ms",
    "masters",
    "quorum",
    "events",
    "impl",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a demo whose temporary files are in `tmp_path`; the path also identifies its processes."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}


@pytest.fixture
def servers() -> Iterator[embedded.Masters]:
    """Three masters that stand for a user's servers."""
    fleet = embedded.masters(3)
    with fleet:
        yield fleet


def run(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    return subprocess.run(
        [*COMMAND, *options], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read the one JSON object on stdout."""
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def survivors(folder: Path) -> list[str]:
    """Return the processes of a demo that used `folder` for its temporary files, without this process."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            # The process has ended meanwhile.
            continue
    return found


def test_the_lock_sells_exactly_the_stock_although_a_master_and_a_buyer_die(environment: dict[str, str]) -> None:
    done = run(environment, *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    result = report(done)
    assert result.keys() >= REPORTED
    assert (result["stock"], result["sold"], result["oversold"]) == (10, 10, 0)
    assert result["oversold_without_lock"] == result["sold_without_lock"] - 10 > 0
    # Every buyer gets the lock once, and the killed buyer's lock is acquired once more.
    assert result["acquisitions"] == 41 + result["lost_leases"]
    assert 0 < result["wait_p50_ms"] <= result["wait_p99_ms"] < result["seconds"] * 1000
    assert (result["masters"], result["cluster"]) == (5, False)
    events = " ".join(entry["event"] for entry in result["events"])
    for word in ("master 2 killed", "while holding the lock", "master 2 is back", "goes on", "sold out"):
        assert word in events


def test_the_lock_sells_exactly_the_stock_although_its_shard_moves_and_fails_over(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = run(environment, *SMALL, "--cluster", "--json")
    assert done.returncode == 0, done.stderr
    result = report(done)
    assert (result["sold"], result["oversold"], result["masters"], result["cluster"]) == (10, 0, 3, True)
    events = " ".join(entry["event"] for entry in result["events"])
    for word in (
        "which has the lock, moved",
        "killed (SIGKILL)",
        "while holding the lock",
        "is its primary",
        "goes on",
    ):
        assert word in events
    assert list(tmp_path.iterdir()) == [] and survivors(tmp_path) == []


def test_the_demo_leaves_no_process_and_no_file(environment: dict[str, str], tmp_path: Path) -> None:
    assert run(environment, *SMALL, "--masters", "3").returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert survivors(tmp_path) == []


def test_the_table_shows_the_main_figures(environment: dict[str, str]) -> None:
    done = run(environment, *SMALL, "--masters", "3")
    assert done.returncode == 0, done.stderr
    for words in ("without a lock", "with redlatch", "oversold", "p99", "implementation", "Sold exactly 10 of 10"):
        assert words in done.stdout
    # The progress is written even if stderr is not a terminal.
    assert "killed (SIGKILL)" in done.stderr


def test_no_master_is_killed_if_all_are_needed(environment: dict[str, str]) -> None:
    done = run(environment, *SMALL, "--masters", "2")
    assert done.returncode == 0, done.stderr
    assert "no master was killed" in done.stdout
    assert "while holding the lock" in done.stdout


@pytest.mark.slow("sizes at the edges of what is possible; the other tests sell with usual ones")
@pytest.mark.parametrize(("stock", "buyers", "masters"), [("1", "2", "3"), ("7", "8", "4"), ("1", "60", "1")])
def test_the_demo_sells_out_whatever_the_sizes(
    environment: dict[str, str], stock: str, buyers: str, masters: str
) -> None:
    done = run(environment, "--stock", stock, "--buyers", buyers, "--masters", masters, "--json")
    assert done.returncode == 0, done.stderr
    assert report(done)["sold"] == int(stock)


def test_modules_in_the_current_folder_are_not_imported(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("redlatch", "random", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported by mistake')")
    script = Path(sys.executable).with_name("redlatch")
    command = [str(script), "demo", "--stock", "1", "--buyers", "4", "--masters", "1", "--json"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stock", "10", "--buyers", "10"), "--buyers must be more than --stock"),
        (("--stock", "0"), "--stock"),
        (("--buyers", "1000000"), "--buyers"),
        (("--masters", "0"), "--masters"),
        (("--seconds", "0.1"), "--seconds"),
        (("--seconds", "nan"), "--seconds"),
        (("--masters", "3", "--servers", "redis://127.0.0.1:1"), "give one of them"),
        (("--cluster", "--masters", "3"), "leave out --masters and --servers"),
        (("--cluster", "--servers", "redis://127.0.0.1:1"), "leave out --masters and --servers"),
        (("redis://127.0.0.1:1",), "go after --servers"),
        (("--servers", "no-such-scheme://somewhere"), "--servers"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_options_that_cannot_work_are_named(
    environment: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    done = run(environment, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_servers_of_the_user_are_not_killed_and_keep_no_key(
    environment: dict[str, str], servers: embedded.Masters
) -> None:
    before = servers.pids
    done = run(environment, *SMALL, "--json", "--servers", *servers.urls)
    assert done.returncode == 0, done.stderr
    result = report(done)
    assert (result["sold"], result["oversold"], result["masters"]) == (10, 0, 3)
    assert not any("master" in entry["event"] for entry in result["events"])
    assert servers.pids == before
    for url in servers.urls:
        with redis.Redis.from_url(url) as server:
            assert server.keys("*") == []


def test_missing_servers_are_one_clear_error(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, *SMALL, "--json", "--servers", "redis://user:secret@127.0.0.1:1")
    assert done.returncode == 1
    assert "Error: cannot lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_in_time_if_the_servers_do_not_answer(
    environment: dict[str, str], servers: embedded.Masters, tmp_path: Path
) -> None:
    for index in range(3):
        servers.pause(index)
    done = run(environment, *SMALL, "--seconds", "5", "--servers", *servers.urls)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usual(
    "the processes of both sales are ended in one way", {"stage": "Starting"}, {"stage": "master 2 killed"}
)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes of a demo in /proc")
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("Starting", signal.SIGINT),
        ("without a lock", signal.SIGTERM),
        ("The same sale", signal.SIGINT),
        ("master 2 killed", signal.SIGTERM),
        ("takes over", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_demo_at_once_and_cleanly(
    environment: dict[str, str], tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*COMMAND, "--stock", "20", "--buyers", "80", "--masters", "3"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while stage not in (line := process.stderr.readline()):
            assert line, f"ended before it said {stage!r}"
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert out == ""
    assert list(tmp_path.iterdir()) == []
    assert survivors(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes of a demo in /proc")
def test_no_process_survives_a_demo_that_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, *SMALL], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "takes over" not in (line := process.stderr.readline()):
            assert line
        process.kill()
    end = time.monotonic() + PATIENCE
    # The processes have no parent that could wait for them, so poll for their end.
    while left := survivors(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_missing_extra_is_reported_in_one_line() -> None:
    for package in ("click", "rich"):
        code = f"import sys; sys.modules['{package}'] = None; import redlatch.cli; redlatch.cli.main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert "pip install 'redlatch[cli,embedded]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_library_does_not_import_its_command_line() -> None:
    code = "import sys, redlatch; sys.exit(any(name in sys.modules for name in ('redlatch.cli', 'click', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_messages_survive_the_way_between_processes(capfd: pytest.CaptureFixture[str]) -> None:
    plan = Plan("/somewhere", Face.ASYNCIO, (1, 5), ("redis://one",), "name", 1.0, 60.0, 0.05, 40, True)
    assert Plan.from_line(plan.to_line()) == plan
    event = Event(Kind.BOUGHT, 0.25)
    event.send()
    assert Event.from_line(capfd.readouterr().out.encode()) == event


def test_the_doomed_buyer_stops_before_it_writes_and_so_does_its_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop = Shop.open(tmp_path / "shop", 2)
    doom = Doom(shop, at=2)
    doomed = purchase(shop, 0, doom, 0.1, lambda: None)
    other = purchase(shop, 1, doom, 0.1, lambda: None)
    pauses = [next(each) for each in (doomed, other, doomed, other)]
    assert min(pauses) >= 1.0
    assert (shop.left(), shop.sales()) == (2, [])
    assert [json.loads(line)["kind"] for line in capfd.readouterr().out.splitlines()] == ["doomed"]
    # This is another process, in which the accident has happened already.
    elsewhere = Doom(shop, at=2)
    assert list(purchase(shop, 2, elsewhere, 0.1, lambda: None))
    assert (shop.left(), shop.sales()) == (1, [2])
    shop.close()


def test_a_lost_lease_keeps_a_buyer_from_writing(tmp_path: Path) -> None:
    class Lost(Exception):
        pass

    def check() -> None:
        raise Lost

    shop = Shop.open(tmp_path / "shop", 2)
    with pytest.raises(Lost):
        list(purchase(shop, 0, Doom(shop, at=0), 0.1, check))
    assert (shop.left(), shop.sales()) == (2, [])
    shop.close()


def test_buyers_are_dealt_out_evenly() -> None:
    shares = Order(3, 10, 4, "name", 1.0, 60.0, 0.05).shares()
    assert sorted(buyer for share in shares for buyer in share) == list(range(10))
    assert {len(share) for share in shares} == {2, 3}
    assert len(Order(1, 2, 4, "name", 1.0, 60.0, 0.05).shares()) == 2


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([5.0], 50) == 5.0
    assert percentile([float(number) for number in range(1, 101)], 99) == 99.0
