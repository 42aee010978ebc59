"""The edge to the machine: fetch, toolchain, capture, compile."""
