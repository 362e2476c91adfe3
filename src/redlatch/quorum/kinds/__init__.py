"""The kinds of locks: what each of them asks the masters."""
