"""Locks that a database transaction holds until its end; for `redlatch.sqlalchemy` and `redlatch.django`."""
