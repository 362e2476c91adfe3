"""Prints the source distributions that contain the tests of peers and frameworks, in the installed versions."""

from importlib.metadata import version

PEERS = ("redis", "redlock-py", "pottery", "python-redis-lock")
FRAMEWORKS = ("celery-redbeat", "django-redis", "dramatiq")

print(*[f"{name}=={version(name)}" for name in PEERS + FRAMEWORKS])
