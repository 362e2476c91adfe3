"""Prints the source distributions that contain the tests of peers and frameworks, in the installed versions."""

from importlib.metadata import version

PEERS = ("redis", "redlock-py", "pottery", "python-redis-lock")
FRAMEWORKS = ("celery-redbeat", "django-redis", "dramatiq")
# The last version of celery-singleton that ships its tests. It is not installed.
SINGLETON = "0.1.3"

if __name__ == "__main__":
    print(*[f"{name}=={version(name)}" for name in PEERS + FRAMEWORKS], f"celery-singleton=={SINGLETON}")
