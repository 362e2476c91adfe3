"""`python -m bench` as a user runs it, on real masters with a tiny budget, and the arithmetic of its figures.

No test here checks a duration.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import peers, scenarios
from bench.blackhole import BlackHole
from bench.contender import REGISTRY, Absent
from bench.floor import NoFloor, compile_floor
from bench.ledger import SIZE, Caller, Ledger
from bench.order import NEVER, fairness
from bench.process import Failed, Programs, Racer
from bench.rounds import Entry, Outcome, Ratio, Scenario, summary
from bench.serve import LOADED
from bench.split import as_redlatch, by_jitter, contest
from bench.team import Team

from redlatch.testing import embedded

pytest.importorskip("click")

COMMAND = (sys.executable, "-m", "bench", "--quick")
PATIENCE = 90
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The command of the floor."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return {"floor": [str(compile_floor(tmp_path_factory.mktemp("floor"))), "--stdin"]}


def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, "--results", str(folder), *options],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def one(contender: str, urls: list[str], order: str) -> dict[str, Any]:
    """Let one contender run one order."""
    racer = Racer(contender, urls, {})
    try:
        return racer.run(order)
    finally:
        racer.close()


# --- the command -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures that the command wrote for one scenario."""
    folder = tmp_path_factory.mktemp("results")
    done = run(folder, "--only", "cycle-n3", "--masters", "3", "--json", str(folder / "too.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "One cycle, one caller, all cores, N=3" in done.stdout
    latest = (folder / "latest.json").read_text()
    assert latest == (folder / "too.json").read_text()
    result: dict[str, Any] = json.loads(latest)
    return result


def test_the_figures_name_the_scenario_and_the_machine(figures: dict[str, Any]) -> None:
    assert [scenario["name"] for scenario in figures["scenarios"]] == ["cycle-n3"]
    assert figures["machine"].keys() >= {"cores", "kernel", "python", "server", "packages"}
    assert figures["machine"]["packages"]["redis"]


def test_a_contender_that_ran_has_medians_and_every_round_behind_them(figures: dict[str, Any]) -> None:
    rows = {row["contender"]: row for row in figures["scenarios"][0]["rows"]}
    pure = rows["redlatch-python"]
    assert pure["failure"] is None and pure["absent"] is None
    assert len(pure["rounds"]) == 2
    assert 0 < pure["p50_us"] <= pure["p99_us"]
    assert pure["cycles_per_s"] > 0


def test_a_contender_without_figures_is_named_with_the_reason(figures: dict[str, Any]) -> None:
    for row in figures["scenarios"][0]["rows"]:
        assert ("rounds" in row) == (row["absent"] is None)
        assert row["absent"] != ""


def test_scenarios_of_other_lists_of_the_same_masters_do_not_disturb_each_other(tmp_path: Path) -> None:
    # These scenarios use five masters, and one of them.
    done = run(tmp_path, "--quick", "--only", "work-n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failure:" not in done.stdout
    assert done.stdout.count("redlatch compiled") == 2


def test_without_a_compiler_the_floor_is_left_out_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "cycle-n3", "--masters", "3", CC="no-such-compiler")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The floor is left out: no C compiler called no-such-compiler is here." in done.stdout
    assert "absent: floor (C): there is no C compiler" in done.stdout


def test_an_unknown_scenario_is_an_error_that_lists_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nonsense")
    assert done.returncode == 2
    assert "cycle-n1" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_race_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    results, files = tmp_path / "results", tmp_path / "files"
    files.mkdir()
    with subprocess.Popen(
        [*COMMAND, "--results", str(results)],
        env={**os.environ, "TMPDIR": str(files)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as race:
        assert race.stdout is not None and race.stderr is not None
        # This line describes the machine; the masters run then.
        race.stdout.readline()
        race.send_signal(number)
        assert "Stopped" in race.stderr.read()
    assert race.returncode == 130
    assert not results.exists()
    assert list(files.iterdir()) == []


# --- the floor -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["cycle 50 1", "pipeline 500 64"])
def test_the_floor_compiles_and_verifies_every_reply(floor: Programs, urls: list[str], order: str) -> None:
    racer = Racer("floor", urls, floor)
    answer = racer.run(order)
    racer.close()
    assert answer["cycles"] == int(order.split()[1])
    assert answer["n"] == 5
    assert answer["release"] == "delifeq"


def test_the_floor_releases_by_script_where_the_server_knows_nothing_else(floor: Programs, server: str) -> None:
    with embedded.masters(1, server=server) as urls:
        racer = Racer("floor", urls, floor)
        answer = racer.run("cycle 50 1")
        racer.close()
    assert answer["release"] in ("delifeq", "delex", "lua")


def test_the_floor_stops_at_an_unexpected_reply(floor: Programs) -> None:
    # The server refuses every SET.
    with embedded.masters(1, config={"maxmemory": "1"}) as urls:
        racer = Racer("floor", urls, floor)
        with pytest.raises(Failed, match=r"expected \+OK, got -OOM"):
            racer.run("cycle 50 1")
        racer.close()


def test_a_failure_of_the_compiler_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NoFloor, match="false could not compile it"):
        compile_floor(tmp_path)


# --- contenders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["cycle 20 1", "rested 20 1", "threads 32 4", "beside 0.05s 1"])
def test_a_contender_of_threads_runs_its_modes(urls: list[str], order: str) -> None:
    answer = one("redlatch-python", urls, order)
    assert answer["cycles"] > 0
    assert answer.get("spins_per_s", 1) > 0


def test_a_contender_of_tasks_runs_the_requested_number(urls: list[str]) -> None:
    assert one("redlatch-aio-python", urls, "tasks 64 16")["cycles"] == 64


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("contender", ["redlatch-python", "redlatch-aio-python"])
def test_a_held_lock_has_a_size(urls: list[str], contender: str) -> None:
    assert one(contender, urls, "memory 300 1")["bytes_per_lock"] >= 0


def test_an_unsupported_mode_makes_a_contender_absent_and_is_no_failure(urls: list[str]) -> None:
    with pytest.raises(Absent, match="no mode tasks"):
        one("redlatch-python", urls, "tasks 10 1")


def test_a_lock_that_is_not_granted_ends_the_contender() -> None:
    with embedded.masters(1, config={"maxmemory": "1"}) as urls, pytest.raises(Failed):
        one("redlatch-python", urls, "cycle 10 1")


def test_a_peer_says_which_package_brings_it() -> None:
    assert peers in LOADED
    for cls in {cls for cls, _ in REGISTRY.values() if cls.__module__ == peers.__name__}:
        assert cls.module and cls.package


def test_a_missing_peer_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redlock.py").write_text("raise ModuleNotFoundError(name='redlock')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Absent, match=r"not installed \(pip install redlock-py\)"):
        one("redlock-py", ["redis://127.0.0.1:1"], "cycle 1 1")


def test_a_peer_that_does_not_import_is_absent_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redlock.py").write_text("raise TypeError('duplicate base class')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Absent, match=r"does not import on Python .*: TypeError: duplicate base class"):
        one("redlock-py", ["redis://127.0.0.1:1"], "cycle 1 1")


# --- one hot name ----------------------------------------------------------------------------------------


def contend(contender: str, urls: list[str], order: str, processes: int = 1) -> dict[str, Any]:
    """Let the processes of one contender run one order together."""
    team = Team(contender, urls, {}, processes)
    try:
        return team.run(order)
    finally:
        team.close()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """An empty ledger."""
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        yield Ledger(file.fileno())


@pytest.mark.parametrize("contender", ["redlatch-python", "redlatch-aio-python"])
def test_callers_of_one_hot_name_change_places_and_never_overlap(urls: list[str], contender: str) -> None:
    answer = contend(contender, urls, "hot 1s 4")
    assert answer["overlaps"] == 0
    assert 0 < answer["changes_per_s"] <= answer["cycles_per_s"]
    assert 0.25 <= answer["fairness"] <= 1
    assert 0 < answer["p50_us"] <= answer["p99_us"]


@pytest.mark.usual(
    "processes contend with the same harness", {"contender": "redlatch-fair-c"}, {"contender": "redlatch-aio-tenure0-c"}
)
@pytest.mark.parametrize(
    "contender", ["redlatch-tenure0-c", "redlatch-fair-c", "redlatch-aio-tenure0-c", "redlatch-aio-fair-c"]
)
def test_several_processes_contend_for_one_name(urls: list[str], contender: str) -> None:
    pytest.importorskip("redlatch._c.wire.engine.fleet", exc_type=ImportError)
    answer = contend(contender, urls, "hot 0.3s 2", processes=3)
    assert answer["processes"] == 3
    assert answer["cycles"] > 0
    assert answer["commands"] >= 2 * 3, "each release must go to the masters"


def test_owners_that_keep_the_lock_are_inside_for_a_share_of_the_time(urls: list[str]) -> None:
    assert 0 < contend("redlatch-aio-python", urls, "hold 1s 4")["held_share"] <= 1


def test_in_a_relay_no_owner_follows_itself(urls: list[str]) -> None:
    answer = contend("redlatch-python", urls, "relay 2s 1", processes=2)
    assert answer["changes_per_s"] > 0
    # The index is 0.9 for three turns that are two to one; with more turns it comes closer to 1.
    assert answer["fairness"] > 0.9, "they take turns"


def test_an_owner_that_finds_another_one_inside_ends_the_contender(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redlock.py").write_text(
        "class Redlock:\n    def __init__(self, urls): pass\n    lock = unlock = lambda *_: True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failed, match="OVERLAP"):
        contend("redlock-py", [url], "hold 0.2s 4")


def test_an_unsupported_mode_makes_a_hot_contender_absent(urls: list[str]) -> None:
    with pytest.raises(Absent, match="no mode hot"):
        contend("redlatch-nowait-python", urls, "hot 0.1s 2", processes=2)


def test_two_owners_at_once_are_seen_by_the_second_and_by_the_first(ledger: Ledger) -> None:
    first, second = (Caller(ledger, number, NEVER) for number in (1, 2))
    first.enter()
    second.enter()
    first.leave()
    assert (first.overlaps, second.overlaps) == (1, 1)


def test_a_change_of_owner_is_counted_and_a_repeated_turn_is_not(ledger: Ledger) -> None:
    first, second = (Caller(ledger, number, NEVER) for number in (1, 2))
    for caller in (first, first, second, second, first):
        caller.enter()
        caller.leave()
    assert (first.turns, second.turns) == (3, 2)
    assert (len(first.handoffs_ns), len(second.handoffs_ns)) == (1, 1)
    assert (first.overlaps, second.overlaps) == (0, 0)


def test_turns_after_the_end_are_not_measured(ledger: Ledger) -> None:
    late = Caller(ledger, 1, 0)
    late.enter()
    late.leave()
    assert (late.entries, late.turns, late.held_ns) == (1, 0, 0)
    assert not late.running


@pytest.mark.parametrize(("shares", "index"), [([5, 5, 5, 5], 1.0), ([7, 0, 0, 0], 0.25), ([0, 0], 0.0), ([3, 1], 0.8)])
def test_fairness_is_jains_index(shares: list[int], index: float) -> None:
    assert fairness(shares) == pytest.approx(index)


@pytest.mark.parametrize(("way", "ordered"), [(as_redlatch, True), (as_redlatch, False), (by_jitter, True)])
def test_rivals_that_start_together_get_a_result_that_the_seed_fixes(way: Any, ordered: bool) -> None:
    first = contest(way, ordered, 8, seed=7)
    assert first == contest(way, ordered, 8, seed=7)
    attempts, nanoseconds = first
    assert attempts >= 1 and nanoseconds > 0


def test_two_rivals_cannot_split_five_votes() -> None:
    assert {contest(as_redlatch, True, 2, seed)[0] for seed in range(20)} == {1}


# --- scenarios and their arithmetic ----------------------------------------------------------------------


@pytest.mark.parametrize("masters", [3, 5, 9])
def test_every_scenario_races_registered_contenders_and_divides_by_one_of_them(masters: int) -> None:
    every = scenarios.scenarios(masters)
    assert len({scenario.name for scenario in every}) == len(every)
    for scenario in every:
        labels = {entry.label for entry in scenario.entries}
        assert len(labels) == len(scenario.entries)
        for entry in scenario.entries:
            assert entry.contender == "floor" or entry.contender in REGISTRY
        for ratio in scenario.ratios:
            assert any(ratio.base_of(entry) in labels for entry in scenario.entries)


def outcome(label: str, *p50s: float, **others: Any) -> Outcome:
    return Outcome(Entry(label, "floor"), rounds=[{"p50_us": p50} for p50 in p50s], **others)


def row_of(outcomes: list[Outcome], label: str) -> dict[str, Any]:
    """Return one row of the summary of a scenario whose ratios are over "base"."""
    entries = tuple(each.entry for each in outcomes)
    result = summary(Scenario("s", "S", entries, (Ratio("x", "p50_us", "base"),)), outcomes)
    found: dict[str, Any] = next(row for row in result["rows"] if row["label"] == label)
    return found


def test_a_ratio_is_formed_inside_each_round_and_its_median_is_reported() -> None:
    row = row_of([outcome("base", 10, 100, 1000), outcome("other", 20, 500, 3000)], "other")
    assert row["p50_us"] == 500
    assert row["ratios"]["x"] == {"median": 3, "min": 2, "max": 5, "base": False}


def test_there_is_no_ratio_over_a_base_that_gave_no_figures() -> None:
    assert row_of([outcome("base", absent="no C compiler"), outcome("other", 20)], "other")["ratios"] == {}


def test_there_is_no_ratio_over_a_base_with_a_round_of_nothing() -> None:
    assert row_of([outcome("base", 10, 0), outcome("other", 20, 20)], "other")["ratios"] == {}


def test_a_table_shows_the_range_of_the_rounds_on_request() -> None:
    from bench.tables import scenario_table
    from rich.console import Console

    entries = (Entry("one", "floor"),)
    shown = []
    for ranges in (True, False):
        scenario = Scenario("s", "S", entries, (), columns=("p50_us",), ranges=ranges)
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(scenario_table(summary(scenario, [outcome("one", 20, 10, 40)])))
        shown.append("20.0 (10.0..40.0)" in console.export_text())
    assert shown == [True, False]


def test_a_failure_is_in_the_summary_and_has_no_figures() -> None:
    row = row_of([outcome("base", 10), outcome("other", failure="it broke")], "other")
    assert row["failure"] == "it broke"
    assert "p50_us" not in row


# --- sick masters ----------------------------------------------------------------------------------------


def test_a_black_hole_passes_everything_on_until_it_swallows(url: str) -> None:
    import redis

    with BlackHole(url) as hole, redis.Redis.from_url(hole.url, socket_timeout=2, retry=None) as client:
        assert client.ping()
        hole.swallow()
        with pytest.raises(redis.TimeoutError):
            client.ping()
