"""Locks that a database transaction holds until its end; for `redlatch.sqlalchemy` and `redlatch.django`.

`held` has the locks of one transaction, `commits` says what a failed COMMIT means. Neither imports a database.
"""
