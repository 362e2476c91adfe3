"""Deterministic simulation: the real protocol, engine and asyncio driver among model masters, networks and clocks.

One integer, the seed, fixes everything that happens. `world` has the time and the chance; `loop` and `host` run clients
in it; `network` carries their bytes; `master` and `keyspace` answer them; `plan` draws what is to happen from a seed;
`schedule` runs it, and `checker` judges what came of it. `python -m tests.sim --help` tells the rest.
"""
