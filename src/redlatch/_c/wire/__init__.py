"""Compiled from `redlatch.wire`."""
