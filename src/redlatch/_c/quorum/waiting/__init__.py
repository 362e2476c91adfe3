"""Compiled from `redlatch.quorum.waiting`."""
