"""Real processes on real masters, with a fault every few seconds, for as long as is wanted: `python -m tests.soak`."""
