"""Histories of real runs: what holders in real processes were told, and whether it can have been true.

`sim.grants` judges a history in O(n log n), `wgl` searches it for an order that explains it (a second opinion on small
ones), and `holder` is a process that keeps one.
"""
