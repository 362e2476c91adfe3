"""Bridges over socket pairs, and their transactions."""
