"""Wheels filed by what they hold, each with a record of how it came to be."""
