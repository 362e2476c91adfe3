"""Tests of `redlatch.sql`: unit tests of its modules, and whole clients on real databases."""
