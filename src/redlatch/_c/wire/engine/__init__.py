"""Compiled from `redlatch.wire.engine`."""
