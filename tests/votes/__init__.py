"""What is put to the masters, and how answers are counted, without servers; with servers: `tests/test_scripts.py`."""
