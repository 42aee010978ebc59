"""What a wheel really holds: device code in its ELF files, and its metadata."""
