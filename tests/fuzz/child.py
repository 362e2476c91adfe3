"""The process in which libFuzzer runs: see `__main__`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

MODULES = ["redlatch.wire.engine.fleet", "redlatch.votes.ballot", "redlatch.guard.master", "redlatch.guard.clock"]

with atheris.instrument_imports(include=MODULES):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.builds import builds

    from fuzz.replies import WORDS, cut, try_one

BUILDS = builds()


def one(data: bytes) -> None:
    """Take the first bytes as the places of the cuts, and some of the rest as whole words."""
    source = atheris.FuzzedDataProvider(data)
    places = [source.ConsumeIntInRange(0, 200) for _ in range(source.ConsumeIntInRange(0, 4))]
    stream = b""
    while source.remaining_bytes():
        if source.ConsumeBool():
            stream += WORDS[source.ConsumeIntInRange(0, len(WORDS) - 1)]
        else:
            stream += source.ConsumeBytes(source.ConsumeIntInRange(1, 8))
    try_one(BUILDS, stream, [cut(stream, places)])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
