"""Deterministic simulation of the driver for threads: the seed decides which thread runs, and where it is stopped.

One integer, the seed, fixes everything that happens. `instrument` compiles the pure build with a call of `gates` at
each point where CPython can switch threads. `kernel` runs each simulated thread in a greenlet and decides at these
points which one goes on. `fakes` replaces locks, sleeping, polling and descriptors by ones that block in virtual time.
Masters, network and rules are those of `tests.sim`. `plan` draws a schedule from a seed, `schedule` runs it. All of it
runs in child processes (`child`), because the instrumented package must not meet the real one.
`python -m tests.simthreads --help` tells the rest.
"""
