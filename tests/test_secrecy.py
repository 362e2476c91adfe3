"""Tests of the scanner that searches the whole run (`secrecy`); the run itself is judged at its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.secrecy import Scanner

from redlatch import Client, LockError, QuorumUnavailable
from redlatch.locks import factory

TOKEN = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def told_on_purpose(secrecy: Scanner) -> Iterator[None]:
    """Remove the leaks of these tests from the scanner of the run."""
    before = len(secrecy.leaks)
    yield
    del secrecy.leaks[before:]


@pytest.fixture
def scanner() -> Scanner:
    scanner = Scanner()
    scanner.know([TOKEN.encode()])
    return scanner


@pytest.mark.parametrize(
    "secret",
    [TOKEN, TOKEN[:31], TOKEN[:24], TOKEN[8:], TOKEN[4:28], TOKEN[:16], "redis://me:s3cr3t@host", "S3CR3T", "s3cr"],
)
def test_a_secret_is_found_in_logs_and_errors(scanner: Scanner, secret: str) -> None:
    scanner.emit(logging.LogRecord("redlatch", logging.INFO, "x", 1, "lock %s", (secret,), None))
    scanner.look_at(LockError(f"no {secret}"))
    scanner.look_at(QuorumUnavailable("no", causes={"host:1": OSError(secret)}))
    hidden = LockError("no")
    hidden.extra = secret  # type: ignore[attr-defined]
    # Only its pickle shows the secret.
    scanner.look_at(hidden)
    assert {leak.partition(":")[0] for leak in scanner.leaks} == {
        "log of redlatch",
        "LockError",
        "pickle of LockError",
        "QuorumUnavailable",
        "pickle of QuorumUnavailable",
    }


def test_info_records_are_searched_as_well(secrecy: Scanner) -> None:
    logging.getLogger("redlatch").info("connection broke: %s", "redis://me:s3cr3t@host")
    assert secrecy.leaks.pop().startswith("log of redlatch")


@pytest.mark.parametrize("harmless", ["f" * 32, "a run_id " + "0a" * 20, "redis://host:6379", TOKEN[:15]])
def test_a_text_without_a_secret_passes(scanner: Scanner, harmless: str) -> None:
    scanner.look_at(LockError(harmless))
    assert not scanner.leaks


def test_tokens_are_known_as_they_are_drawn(secrecy: Scanner, url: str, name: str) -> None:
    before = secrecy.read
    with Client(url) as client, client.lock(name) as lock:
        assert lock.token is not None
        secrecy.look(lock.token.decode(), "this test")
    assert secrecy.leaks.pop().startswith("this test")
    assert secrecy.read > before
    assert factory.draw_tokens.__name__ == "drawing"
