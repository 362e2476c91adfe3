"""Deterministic simulation of the thread driver: the seed decides which thread runs, and where it is preempted.

The seed, one integer, fixes everything that happens. `instrument` compiles the pure build with a call of `gates` at
each point where CPython can switch threads. `kernel` runs each simulated thread in a greenlet, and decides at these
points which thread runs next. `fakes` replaces locks, sleeping, polling and descriptors; its versions block in virtual
time. Masters, network, rules and the steps of a use are those of `tests.sim`. `drawing` draws a `plan` from a seed,
`schedule` runs it, and `thread_uses` has what threads do.
Everything runs in child processes (`child`), so that one process never imports both the instrumented and the real
package. `python -m tests.simthreads --help` shows the options.
"""
