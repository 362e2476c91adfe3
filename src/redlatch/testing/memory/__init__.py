"""Clients on masters in memory, whose time is virtual: `redlatch.testing` has their public names."""
