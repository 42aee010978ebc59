"""Mutated `setup.py` files through the rewrite: what has to hold whatever comes in."""
