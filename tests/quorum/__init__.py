"""The algorithm alone, without servers: scripted votes and an injected clock. With servers: the files of `tests/`."""
