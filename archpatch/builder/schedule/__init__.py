"""How the compilers of all builds of one command share the cores and the memory of this machine."""
