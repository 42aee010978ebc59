"""One of many that use a shared folder, until it is killed: `crowd_program.py KIND SHARED OWN LOG SEED`.

A `direct` one compiles in the shared folder itself; a `node` has a root of its own, which it brings up to date,
compiles in and publishes; a `saver` writes archives of the shared folder and restores them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import triton
from kernels import LANE, LIMIT, folder, key
from triton_program import compile_one

from archpatch.kernel_cache.restore import restore
from archpatch.kernel_cache.save import save
from archpatch.kernel_cache.share import fetch, publish
from archpatch.kernel_cache.store import Store

ARCHS, BLOCKS = (80, 90), tuple(1 << power for power in range(4, 13))


def compile_some(root: Path, rng: random.Random, log: Path) -> None:
    """Compile a few kernels in a root, and write down what Triton said."""
    triton.knobs.cache.dir = str(folder(root, "triton"))
    for _ in range(rng.randint(1, 4)):
        told = compile_one(rng.choice(ARCHS), rng.choice(BLOCKS))
        line = (json.dumps(told) + "\n").encode()
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)  # one write, so that no kill tears it
        os.close(descriptor)


def main(kind: str, shared: Path, own: Path, log: Path, seed: str) -> None:
    """Work for ever."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    while True:
        if kind == "direct":
            compile_some(shared, rng, log)
            continue
        if rng.random() < 0.3:
            shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True, exist_ok=True)
        if kind == "saver":
            save(Store(own.parent / "store"), shared, lane=LANE, key=key(rng.randint(1, 50)), limit=LIMIT)
            restore(Store(own.parent / "store"), own, lane=LANE, key=key(rng.randint(1, 50)), limit=LIMIT)
        else:
            fetch(own, shared, lane=LANE)
        compile_some(own, rng, log)
        publish(own, shared, lane=LANE)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]), seed=sys.argv[5])
