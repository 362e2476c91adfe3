"""The race against other languages: its scenarios, its builds, its programs on real masters, and its result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from filecmp import cmp
from pathlib import Path
from typing import Any

import pytest
import redis
from bench import builds
from bench.builds import BUILT, NODE, SOURCES, Language, NotBuilt, build, reason
from bench.contender import REGISTRY
from bench.foreign import CLIENTS, FOOTNOTES, build_all, language_scenarios
from bench.process import Failed, Racer
from bench.rounds import Outcome, summary
from bench.serve import LOADED

assert LOADED

RESULT = builds.ROOT / "bench/results/languages.json"
MANIFESTS = {"rust": "Cargo.toml", "go": "go.mod", "node": "package.json", "java": "pom.xml"}


# --- scenarios -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masters", [3, 5])
def test_every_scenario_races_known_contenders_and_divides_by_one_of_them(masters: int) -> None:
    every = language_scenarios(masters)
    assert len({scenario.name for scenario in every}) == 6
    for scenario in every:
        labels = [entry.label for entry in scenario.entries]
        assert len(set(labels)) == len(labels)
        assert all(entry.contender in {"floor", *REGISTRY, *CLIENTS} for entry in scenario.entries)
        assert all(ratio.base in labels for ratio in scenario.ratios)


def test_a_lock_of_three_keys_on_one_server_races_on_one_master_only() -> None:
    names = {each.name for each in language_scenarios(5) for entry in each.entries if entry.contender == "rueidislock"}
    assert names == {"languages-n1-1", "languages-n1-64", "languages-n1-512"}


@pytest.mark.parametrize("folder", MANIFESTS)
def test_versions_are_exact(folder: str) -> None:
    text = (SOURCES / folder / MANIFESTS[folder]).read_text()
    # In Cargo.toml a version without "=" is a range.
    wanted = re.findall(r'(?:version = |^\w+ = )"([^"]+)"', text.partition("[dependencies]")[2], re.MULTILINE)
    wanted += re.findall(r'"(?:ioredis|redlock)": "([^"]+)"', text)
    assert not [version for version in wanted if version.startswith(("^", "~", ">", "*"))]
    if folder == "rust":
        assert len([version for version in wanted if version.startswith("=")]) == 4


@pytest.mark.parametrize("client", [name for name in FOOTNOTES if name != "all of them"])
def test_a_footnote_is_about_the_version_that_is_raced(client: str) -> None:
    manifests = "".join((SOURCES / folder / name).read_text() for folder, name in MANIFESTS.items())
    assert client.split()[1] in manifests


# --- builds ----------------------------------------------------------------------------------------------


def language(*command: str, tools: tuple[str, ...] = ()) -> Language:
    """Return a language with the sources of Node and another command."""
    return Language("Shell", "node", tools, ("echo", "version 1"), command, ("{folder}/main.js",))


def test_a_build_runs_in_a_copy_of_the_sources_and_returns_the_version(tmp_path: Path) -> None:
    made = language("touch", "built")
    assert build(made, tmp_path) == "version 1"
    assert (tmp_path / "node/built").exists() and not (SOURCES / "node/built").exists()
    assert made.command(tmp_path) == [str(tmp_path / "node/main.js")]
    assert (tmp_path / "node/main.js").read_text() == (SOURCES / "node/main.js").read_text()


def test_a_language_without_its_toolchain_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(NotBuilt, match=r"^no-such-compiler is not installed$"):
        build(language("true", tools=("no-such-compiler",)), tmp_path)


def test_a_build_that_fails_says_why_and_keeps_its_output(tmp_path: Path) -> None:
    script = "echo fetching; echo 'error: no such package' >&2; echo bye; exit 3"
    with pytest.raises(NotBuilt, match=r"failed: error: no such package; see .*build\.log$"):
        build(language("sh", "-c", script), tmp_path)
    assert (tmp_path / "node/build.log").read_text().splitlines() == ["fetching", "error: no such package", "bye"]


def test_a_build_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "PATIENCE", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotBuilt, match="took longer than"):
        build(language("sh", "-c", f"exec 3> {fifo}; sleep 3600 & wait"), tmp_path)
    os.set_blocking(reader, True)
    # The end of the file comes when the last process that could write has ended.
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("words", "line"), [("a\nb\n\n", "b"), ("x\n[ERROR] broken\nerror: too\n", "[ERROR] broken"), ("", "status 2")]
)
def test_the_reason_is_the_first_error_or_the_last_line(words: str, line: str) -> None:
    assert reason(words, 2) == line


def test_languages_that_are_left_out_are_announced_and_their_clients_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    notes: list[dict[str, Any]] = []
    programs, versions = build_all(notes.append)
    assert programs.keys() == CLIENTS.keys()
    assert programs["rslock"] == "cargo is not installed"
    assert {"note": "Go IS LEFT OUT: go is not installed."} in notes
    assert versions == {}


def test_the_command_races_without_the_languages_that_are_missing(tmp_path: Path) -> None:
    pytest.importorskip("click")
    options = ("--languages", "--quick", "--masters", "3", "--only", "n3-1", "--results", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=builds.ROOT,
        env={**os.environ, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Rust IS LEFT OUT: cargo is not installed." in done.stdout
    assert "absent: rslock; rslock, one thread: cargo is not installed" in done.stdout
    rows = json.loads((tmp_path / "languages.json").read_text())["scenarios"][0]["rows"]
    assert [row["label"] for row in rows if "rounds" in row][-1] == "redlatch asyncio"
    assert "Redisson 3.52.0: " in done.stdout


# --- programs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_node(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The folder of the program that is built in seconds, or the reason why it cannot be built."""
    folder = tmp_path_factory.mktemp("languages")
    try:
        build(NODE, folder)
    except NotBuilt as why:
        return f"Node is left out: {why}"
    return folder


def of_an_earlier_race(language: Language) -> Path | str:
    """Return the folder of a program that takes a minute to build, or the reason why it is not there."""
    sources = [path for path in (SOURCES / language.folder).rglob("*") if path.is_file()]
    copies = [BUILT / language.folder / path.relative_to(SOURCES / language.folder) for path in sources]
    if all(copy.exists() and cmp(path, copy, shallow=False) for path, copy in zip(sources, copies, strict=True)):
        return BUILT
    return f"`python -m bench --languages` has not built the program in {language.name} from these sources"


@pytest.fixture(params=CLIENTS)
def racer(request: pytest.FixtureRequest, of_node: Path | str, urls: list[str]) -> Iterator[Racer]:
    """A running program, on five masters or on one."""
    client = CLIENTS[request.param]
    folder = of_node if client.language is NODE else of_an_earlier_race(client.language)
    if isinstance(folder, str):
        pytest.skip(folder)
    command = [*client.language.command(folder), *client.arguments, "--stdin"]
    made = Racer(request.param, urls if "all" in client.on else urls[:1], {request.param: command})
    yield made
    made.close()


@pytest.mark.parametrize(("order", "cycles"), [("cycle 20", 20), ("tasks 40 8", 40)])
def test_a_program_runs_the_requested_cycles(racer: Racer, order: str, cycles: int) -> None:
    answer = racer.run(order)
    assert answer["cycles"] == cycles
    assert answer["failed"] == 0
    assert 0 < answer["p50_us"] <= answer["p99_us"]
    assert racer.run("cycle 0.01s")["cycles"] >= 1


def test_a_program_leaves_no_lock_behind(racer: Racer, urls: list[str]) -> None:
    assert racer.run("cycle 20")["cycles"] == 20
    racer.close()
    for url in urls:
        with redis.Redis.from_url(url) as master:
            left = [key for key in master.scan_iter(f"*bench:{racer.pid}:*") if b"unlock_latch" not in key]
            assert left == []


def test_a_program_ends_if_a_lock_is_not_granted(racer: Racer, urls: list[str]) -> None:
    name = f"bench:{racer.pid}:1:0:7"
    for url in urls:
        with redis.Redis.from_url(url) as master:
            for key in (name, f"rueidislock:0:{name}", f"rueidislock:1:{name}"):
                master.set(key, "another", px=60_000)
    with pytest.raises(Failed):
        racer.run("cycle 20")


def test_a_program_refuses_an_unknown_mode(racer: Racer) -> None:
    with pytest.raises(Failed, match="expected cycle"):
        racer.run("hot 1s 4")


# --- the result ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not RESULT.exists(), reason="only clones have bench/results")
def test_the_documentation_has_the_figures_of_the_last_race() -> None:
    table = subprocess.check_output([sys.executable, RESULT.parents[1] / "language_table.py"], text=True)
    documented = (builds.ROOT / "docs/benchmarks.md").read_text().splitlines()
    assert [line for line in table.splitlines() if line not in documented] == []


def test_the_picture_has_a_bar_for_every_contender_with_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.bars import draw_bars

    results = []
    for scenario in language_scenarios(5)[:2]:
        rounds = [{"p50_us": 10.0 * number, "cycles_per_s": 1e5 / number} for number in (1, 2, 3)]
        outcomes = [Outcome(entry, rounds) for entry in scenario.entries[:-1]]
        outcomes.append(Outcome(scenario.entries[-1], absent="not installed"))
        results.append(summary(scenario, outcomes))
    files = draw_bars({"scenarios": results}, tmp_path)
    assert [path.name for path in files] == ["languages.svg", "languages.png"]
    text = files[0].read_text()
    assert "<!-- redsync, rueidis -->" in text and "<!-- Redisson, threads -->" in text
    assert "<!-- Redisson, tasks -->" not in text
    assert draw_bars({"scenarios": []}, tmp_path) == []
