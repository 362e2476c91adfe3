"""The lock family, the part that both faces share."""
