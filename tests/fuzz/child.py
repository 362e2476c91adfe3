"""The process that libFuzzer runs in: see `__main__`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["redlatch.wire.engine", "redlatch.protocol.ballot", "redlatch.protocol.guard"]
):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from builds import builds

    from fuzz.replies import WORDS, cut, try_one

BUILDS = builds()


def one(data: bytes) -> None:
    """Take the first bytes for where the rest is cut, and some of the rest for whole words."""
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
