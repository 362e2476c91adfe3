"""Mutants: the bugs of other clients, put into ours one at a time, to see that the simulator finds each.

`python -m tests.mutants` shows by which seed. `catalogue` has them, `child` runs schedules on one.
"""
