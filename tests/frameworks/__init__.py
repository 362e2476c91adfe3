"""Tests of the modules for web frameworks and task queues, with the real frameworks and real servers."""
