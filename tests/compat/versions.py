"""Prints which peers' source distributions have the tests: those of the versions that are installed."""

from importlib.metadata import version

print(*[f"{name}=={version(name)}" for name in ("redis", "redlock-py", "pottery", "python-redis-lock")])
