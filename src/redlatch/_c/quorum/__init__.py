"""Compiled from `redlatch.quorum`."""
