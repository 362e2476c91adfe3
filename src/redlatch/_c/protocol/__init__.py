"""Compiled from `redlatch.protocol`."""
