"""The algorithm, as iterators of effects (see `effects`). No I/O: clock and random numbers are passed in."""
