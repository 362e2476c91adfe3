"""The quorum of a client: how many must agree, validity, how long an attempt waits, and its tokens."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl
from redlatch.options import ClientOptions

pytestmark = pytest.mark.each_build

MS = 1_000_000
SECOND = 1000 * MS


@pytest.fixture
def module(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.quorum")


@pytest.fixture(scope="module")
def build(build: impl.Implementation) -> ModuleType:
    """The module, for tests that hypothesis calls many times."""
    return build.module("quorum.quorum")


def units_of(module: ModuleType) -> ModuleType:
    """Return `votes.units` of the same build."""
    return importlib.import_module(module.__name__.replace("quorum.quorum", "votes.units"))


def quorum_made(module: ModuleType, masters: tuple[str, ...] = ("a", "b", "c"), **options: Any) -> Any:
    return module.Quorum(
        masters=masters,
        options=ClientOptions("", guard=None, **options),
        clock=units_of(module).Clock(),
        random=lambda: 0.0,
        tokens=module.Tokens(lambda: [b""]),
        fences=module.Fences(lambda: 1000),
    )


@pytest.mark.parametrize(("masters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half(module: ModuleType, masters: int, quorum: int) -> None:
    assert units_of(module).quorum_of(masters) == quorum
    assert quorum_made(module, masters=("m",) * masters).majority == quorum


@given(masters=st.integers(1, 1000))
def test_two_quorums_always_share_a_master(build: ModuleType, masters: int) -> None:
    assert masters < 2 * units_of(build).quorum_of(masters) <= masters + 2


@given(ttl_ms=st.integers(4, 10**10), factor=st.floats(0, 0.4))
def test_the_drift_allowance_is_a_share_of_the_ttl_and_2_ms(build: ModuleType, ttl_ms: int, factor: float) -> None:
    drift = units_of(build).drift_ns(ttl_ms, factor)
    assert drift == pytest.approx(ttl_ms * MS * factor + 2 * MS, abs=1)
    assert quorum_made(build, drift_factor=factor).validity_ns(ttl_ms) == ttl_ms * MS - drift < ttl_ms * MS


@given(ttl_ms=st.integers(1, 100 * 365 * 86_400_000), factor=st.floats(0, 0.99))
def test_both_builds_compute_the_same_validity(ttl_ms: int, factor: float) -> None:
    try:
        modules = [impl.load(name).module("quorum.quorum") for name in ("c", "python")]
    except ImportError:
        pytest.skip("the compiled implementation was not built")
    compiled, pure = (quorum_made(each, drift_factor=factor).validity_ns(ttl_ms) for each in modules)
    assert compiled == pure


@given(ttl_ms=st.integers(4, 10**8), taken_ns=st.integers(1000, 10 * MS), factor=st.floats(0, 0.4))
def test_the_ttl_for_a_validity_is_the_largest_that_gives_no_more(
    build: ModuleType, ttl_ms: int, taken_ns: int, factor: float
) -> None:
    quorum = quorum_made(build, drift_factor=factor)
    validity_ns = quorum.validity_ns(ttl_ms) - taken_ns
    found_ms = quorum.ttl_ms_for(validity_ns)
    assert found_ms < ttl_ms
    # A drop-in of redis-py adds this to what its caller wants, and its suite allows no millisecond more.
    if found_ms:
        assert quorum.validity_ns(found_ms) <= validity_ns + 1000 < quorum.validity_ns(found_ms + 1) + 2000


def test_there_is_no_ttl_for_a_validity_that_is_over(module: ModuleType) -> None:
    assert quorum_made(module).ttl_ms_for(-SECOND) == 0


@pytest.mark.parametrize(("ttl_ms", "wait_ms"), [(10, 100), (2000, 100), (10_000, 500), (60_000, 1000)])
def test_an_attempt_waits_5_percent_of_the_ttl_within_100_ms_and_1_s(
    module: ModuleType, ttl_ms: int, wait_ms: int
) -> None:
    assert quorum_made(module).wait_ns(ttl_ms) == wait_ms * MS


def test_an_attempt_timeout_that_was_given_is_taken_as_it_is(module: ModuleType) -> None:
    assert quorum_made(module, attempt_timeout=7e-9).wait_ns(60_000) == 7


@pytest.mark.parametrize(("left_ms", "wait_ms"), [(5, 100), (300, 300), (5000, 1000), (-1, 100)])
def test_row_42_an_attempt_waits_no_longer_than_its_caller(module: ModuleType, left_ms: int, wait_ms: int) -> None:
    assert quorum_made(module).wait_within(60_000, left_ms * MS) == wait_ms * MS


@pytest.mark.parametrize(("round_ms", "lone_ms"), [(0, 10), (1, 10), (5, 40), (50, 100)])
def test_row_42_a_master_that_is_asked_alone_has_a_few_round_trips(
    module: ModuleType, round_ms: int, lone_ms: int
) -> None:
    assert quorum_made(module).lone_ns(1000 * MS, round_ms * MS) == lone_ms * MS


@given(masters=st.permutations([f"10.0.0.{number}:6379" for number in range(5)]), name=st.binary(min_size=1))
def test_all_clients_agree_on_a_first_master_whatever_the_order_of_their_lists(
    build: ModuleType, masters: list[str], name: bytes
) -> None:
    quorum = quorum_made(build, masters=tuple(masters))
    agreed = masters[quorum.queues.first_master.first_of(quorum.order, name, 1)]
    assert agreed == sorted(masters)[crc32(name) % 5]


# --- tokens ---------------------------------------------------------------------------------------------


@pytest.fixture
def tokens_of(module: ModuleType) -> Callable[..., Any]:
    """Return a function that makes a stock of numbered tokens, drawn three at a time."""

    def make(label: Callable[[], bytes] | None = None) -> Any:
        numbers = itertools.count()
        draw = lambda: [b"%d" % number for number in itertools.islice(numbers, 3)]  # noqa: E731
        return module.Tokens(draw, label)

    return make


def test_no_token_is_taken_twice(tokens_of: Callable[..., Any]) -> None:
    tokens = tokens_of()
    taken = [tokens.take(0) for _ in range(10)] + [tokens.take_plain() for _ in range(10)]
    assert len(set(taken)) == 20


def test_tokens_of_one_second_share_a_label(tokens_of: Callable[..., Any]) -> None:
    labels = (b":%d" % number for number in itertools.count())
    tokens = tokens_of(lambda: next(labels))
    times = [0, 1, SECOND - 1, SECOND, 2 * SECOND - 1, 5 * SECOND]
    assert [tokens.take(now).partition(b":")[2] for now in times] == [b"0", b"0", b"0", b"1", b"1", b"2"]
    assert b":" not in tokens.take_plain()
