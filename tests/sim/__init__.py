"""Deterministic simulation: the real protocol, engine and asyncio driver among model masters, networks and clocks.

One integer, the seed, fixes everything that happens. `world` has the time and the random numbers. `loop` and `host` run
clients in it, `network` carries their bytes, and `master` answers them, with `redlatch.testing.memory.keyspace`. `plan`
draws a plan from a seed, `schedule` runs it, and `checker` judges the result. See `python -m tests.sim --help` for the
options.
"""
