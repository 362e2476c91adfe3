"""Compiled from `redlatch.votes`."""
