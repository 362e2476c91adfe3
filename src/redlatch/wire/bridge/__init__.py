"""Bridges: threads that answer the engine for servers without scripts, and for databases."""
