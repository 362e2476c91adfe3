"""Real processes on real masters, with a fault every few seconds, for any length of time: `python -m tests.soak`."""
