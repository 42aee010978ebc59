"""Atomic files, archives and digests: what every folder on disk rests on."""
