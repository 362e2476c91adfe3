"""Prints the peers' source distributions that contain the tests, in the installed versions."""

from importlib.metadata import version

print(*[f"{name}=={version(name)}" for name in ("redis", "redlock-py", "pottery", "python-redis-lock")])
