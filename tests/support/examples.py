"""Run the examples of a page with sybil, in their order and in one namespace: `python examples.py PAGE MASTER...`.

A page may have the comments of sybil: ``<!-- skip: next "reason" -->``, ``<!-- skip: start "reason" -->``,
``<!-- skip: end -->`` and ``<!-- invisible-code-block: python``. Blocks of other languages run nowhere, so each of them
needs a reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from unittest import SkipTest

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import redlatch

OTHER_LANGUAGES = ("sql", "toml", "yaml")


class Sale:
    """What `sell_one()` of the examples returns; it may be awaited or not."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def refuse(example: Example) -> str:
    """Fail for a block that cannot run and has no reason."""
    return 'this block does not run: say why, with <!-- skip: next "reason" --> before it'


def run(page: str, masters: list[str]) -> None:
    """Run the examples of a page; `client` is a client of the masters until the page makes its own."""
    others = [CodeBlockParser(language, refuse) for language in OTHER_LANGUAGES]
    document = Document.parse(page, PythonCodeBlockParser(), SkipParser(), *others)
    document.namespace |= {"redlatch": redlatch, "client": redlatch.Client(masters), "sell_one": Sale}
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as skipped:
            print(f"line {example.line} is skipped: {skipped}")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
