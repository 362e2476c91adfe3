"""Compiled from `redlatch.quorum.kinds`."""
