"""Import torch, wait for an order, and run the script that it names.

This file is run as a script by the interpreter that holds torch, and imports nothing of archpatch. Its arguments are a
descriptor and a folder. A byte at the descriptor says that the order lies in the folder, as `order.json`:

    {argv: [SCRIPT, ARGUMENT...], cwd, set: {NAME: VALUE}, unset: [NAME]}

All of it are bytes, one character each, since this interpreter may decode them otherwise than the one that asks. The
file `began` appears when the script is about to run: before it, nothing has happened.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping
from typing import Any


def become(order: Mapping[str, Any]) -> None:
    """Take over the variables, the working directory and the arguments of an order."""
    for name in order["unset"]:
        os.environb.pop(name.encode("latin-1"), None)
    for name, value in order["set"].items():
        os.environb[name.encode("latin-1")] = value.encode("latin-1")
    os.chdir(order["cwd"].encode("latin-1"))
    sys.argv[:] = [os.fsdecode(word.encode("latin-1")) for word in order["argv"]]
    # The import may have looked it up, with the variables of before.
    tempfile.tempdir = None


def main(descriptor: int, folder: str) -> None:
    """Import torch, wait, and run."""
    os.set_inheritable(descriptor, False)
    # Modules of names like `git` and `source` lie beside this file, which nobody else shall find.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]

    import torch  # noqa: F401 - that is what this is for

    is_ordered = os.read(descriptor, 1)
    os.close(descriptor)
    if not is_ordered:
        return
    with open(os.path.join(folder, "order.json"), encoding="ascii") as file:
        become(json.load(file))
    open(os.path.join(folder, "began"), "x").close()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
