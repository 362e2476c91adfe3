"""The algorithm, as generators that yield effects (see `effects`). No I/O: clock and random numbers are passed in."""
