"""Clients in memory beside real ones, virtual time, and the pytest plugin."""
