"""Rewrite `setup.py`: bytes in, an outcome out. The only importer of libcst."""
