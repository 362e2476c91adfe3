"""The locks of a transaction, without a database."""
