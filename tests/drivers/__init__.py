"""The parts of the drivers without clients; most without servers. With clients: the files of `tests/`."""
