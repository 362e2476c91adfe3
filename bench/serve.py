"""Run one contender in its own process. It reads its orders from stdin.

    python -m bench.serve NAME URL...

A line of stdin is "MODE AMOUNT [WIDTH]", as for the floor. The answer is one line of JSON: the figures of the run, or
{"absent": "reason"} if the contender is not available here or does not have the mode.
"""

from __future__ import annotations

import importlib
import json
import sys

from bench import imports, ours, peers, split
from bench.contender import REGISTRY, Absent, Contender
from bench.order import Answer

# The modules that register the contenders.
LOADED = (imports, ours, peers, split)


def make(name: str) -> Contender:
    """Make the contender of this name.

    Raises:
        Absent: its package is not installed, or cannot be imported here.
    """
    cls, attributes = REGISTRY[name]
    if cls.module:
        try:
            importlib.import_module(cls.module)
        except ModuleNotFoundError as error:
            if error.name == cls.module:
                raise Absent(f"not installed (pip install {cls.package}{cls.limit})") from error
            raise Absent(unfit(error)) from error
        except Exception as error:
            # An old package may raise any exception on a new Python.
            raise Absent(unfit(error)) from error
    made = cls()
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def unfit(error: Exception) -> str:
    """Return the message for a package that is installed but cannot be imported."""
    return f"does not import on Python {sys.version_info[0]}.{sys.version_info[1]}: {type(error).__name__}: {error}"


def answer(figures: Answer) -> None:
    """Write one answer."""
    print(json.dumps(figures), flush=True)


def main(arguments: list[str]) -> None:
    """Serve the contender that the first argument names, on the masters that the other arguments name."""
    name, *urls = arguments
    try:
        make(name).serve(urls, sys.stdin, answer)
    except Absent as reason:
        answer({"absent": str(reason)})


if __name__ == "__main__":
    main(sys.argv[1:])
