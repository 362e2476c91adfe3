"""Run one contender as a process of its own, told on stdin how much to do.

    python -m redlatch.bench.serve NAME URL...

A line of stdin is "MODE AMOUNT [WIDTH]", as it is for the floor; the answer is one line of JSON: the figures of the
run, or {"absent": "why"} when the contender is not to be had here, or has no such mode.
"""

from __future__ import annotations

import importlib
import json
import sys

from redlatch.bench import imports, ours, peers, split
from redlatch.bench.contender import REGISTRY, Absent, Contender
from redlatch.bench.order import Answer

LOADED = (imports, ours, peers, split)  # each registers its contenders


def make(name: str) -> Contender:
    """Make the contender of that name.

    Raises:
        Absent: what it needs is not installed, or cannot be imported here.
    """
    cls, attributes = REGISTRY[name]
    if cls.module:
        try:
            importlib.import_module(cls.module)
        except ModuleNotFoundError as error:
            if error.name == cls.module:
                raise Absent(f"not installed (pip install {cls.package}{cls.limit})") from error
            raise Absent(unfit(error)) from error
        except Exception as error:  # an old package may fail in any way on a new Python
            raise Absent(unfit(error)) from error
    made = cls()
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def unfit(error: Exception) -> str:
    """Word that a package is there and does not import."""
    return f"does not import on Python {sys.version_info[0]}.{sys.version_info[1]}: {type(error).__name__}: {error}"


def answer(figures: Answer) -> None:
    """Write one answer."""
    print(json.dumps(figures), flush=True)


def main(arguments: list[str]) -> None:
    """Serve the contender named first on the masters named after it."""
    name, *urls = arguments
    try:
        make(name).serve(urls, sys.stdin, answer)
    except Absent as reason:
        answer({"absent": str(reason)})


if __name__ == "__main__":
    main(sys.argv[1:])
