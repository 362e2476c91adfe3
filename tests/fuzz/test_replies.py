"""Arbitrary replies from hypothesis, and from atheris, which learns from the code's branches, if its wheel installs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builds import builds

from fuzz.replies import MOST_BYTES, WORDS, cut, hear, try_one

ROOT = Path(__file__).parents[2]
SECONDS = 30

streams = st.lists(st.sampled_from(WORDS) | st.binary(max_size=12), max_size=14).map(b"".join)


@settings(max_examples=1500, deadline=None)
@given(streams, st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_in_any_pieces_have_the_same_effect_in_both_builds(data: bytes, places: list[int]) -> None:
    try_one(builds(), data, [[data], cut(data, places), cut(data, range(len(data)))])


@pytest.mark.parametrize(
    "data",
    [b"+" + b"x" * (4 << 20), b":" + b"1" * (4 << 20), b">2\r\n$10\r\ninvalidate\r\n*1\r\n$999\r\n" + b"x" * (4 << 20)],
)
def test_a_flood_closes_the_connection_before_its_bytes_are_kept(data: bytes) -> None:
    for build in builds():
        outcome = hear(build, [data[start : start + 8192] for start in range(0, len(data), 8192)])
        assert not outcome.up
        assert outcome.kept <= MOST_BYTES


def test_pushes_are_not_kept_and_pushes_without_end_close_the_connection() -> None:
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    for build in builds():
        outcome = hear(build, [push * 100] * 10)
        assert outcome.up
        assert outcome.kept == 0
        assert not hear(build, [push * 100] * 50).up


@pytest.mark.slow("replies that hypothesis does not think of")
def test_atheris_finds_nothing_in_half_a_minute(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("there is no wheel of atheris for this Python")
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS), "--corpus", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 6)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "executions" in ended.stdout
