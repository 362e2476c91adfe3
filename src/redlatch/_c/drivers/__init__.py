"""Compiled from `redlatch.drivers`."""
