"""`python -m archpatch` and the `archpatch` command."""

from __future__ import annotations

import sys

from archpatch.cli.main import run


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
