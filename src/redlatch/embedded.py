"""The first name of `redlatch.testing`, which stays: embedded masters."""

from redlatch.testing import Masters, find_server, masters

__all__ = ["Masters", "find_server", "masters"]
