"""`python -m archpatch` and the `archpatch` command."""

from __future__ import annotations

import gc
import sys

from archpatch.cli.main import run


def main() -> None:
    """Run the command line and exit with its status."""
    status = run(sys.argv[1:])
    # Python looks for garbage once more before it ends, in all that was imported: 10 ms for nothing.
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    main()
