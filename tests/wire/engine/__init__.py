"""The engine over socket pairs, whose other ends the test plays."""
