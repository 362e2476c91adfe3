"""Deterministic simulation: the real protocol, engine and asyncio driver among model masters, networks and clocks.

One integer, the seed, fixes everything that happens. `drawing` draws a `plan` from it, `schedule` runs the plan, and
`checker` judges the result. See `python -m tests.sim --help` for the options.

`tests.simthreads` simulates threads in the same world, and shares these modules: `world` has the time and the random
numbers. A `host` is a process, `network` carries its bytes, and `master` answers them, with
`redlatch.testing.memory.keyspace`. `parts` has what all plans consist of, and `faults` makes faults happen. `base` and
`using` are what all schedules do, step by step. `checker`, `grants` and `reports` have the rules. `shrink` makes a plan
smaller, and `batches` runs many. All other modules are about tasks: `task_host` and `loop` run them, and `task_uses`
has what they do.
"""
