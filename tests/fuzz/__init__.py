"""Mutated `setup.py` files through the rewrite, and mutated libraries through the slimming: what has to hold."""
