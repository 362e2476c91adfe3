"""`redlatch run`."""
