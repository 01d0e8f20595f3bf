"""Preflight checks: small functions of a `Subject` that return a `Finding`. `table.py` lists them in order."""
