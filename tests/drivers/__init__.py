"""The drivers and their parts, on one real master at most. Whole clients on many masters: the files of `tests/`."""
