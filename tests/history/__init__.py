"""Histories of real runs: the times in which holders in real processes believed that they had a lock, and their check.

`sim.grants` judges a history in O(n log n). `wgl` searches for an order that explains it, as a second opinion on small
histories. `holder` is a process that records one.
"""
