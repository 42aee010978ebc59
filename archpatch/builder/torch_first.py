"""Import torch, then run the script that is asked for on standard input, as if torch had not been imported.

This file is run as a script by the interpreter that holds torch, and imports nothing of archpatch. What it reads is one
line, a JSON object: {argv: [SCRIPT, ARGUMENT...], cwd, environment}. An end of the input without it ends this, too.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping


def become(variables: Mapping[str, str], started_with: Mapping[str, str]) -> None:
    """Take over the variables of a process; what the import has set stays."""
    for name in started_with.keys() - variables.keys():
        os.environ.pop(name, None)
    os.environ.update(variables)
    # It may have been looked up with the variables of before.
    tempfile.tempdir = None


def main() -> None:
    """Import torch, wait, and run."""
    started_with = dict(os.environ)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]

    import torch  # noqa: F401 - that is what this is for

    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    become(order["environment"], started_with)
    os.chdir(order["cwd"])
    sys.argv[:] = order["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
