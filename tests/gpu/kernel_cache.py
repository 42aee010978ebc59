"""Show on a machine with a GPU what a cache of kernels saves: cold, then restored elsewhere in a new process.

    python tests/gpu/kernel_cache.py --work FOLDER

Needs archpatch importable, torch with Triton, and zstandard (without which folders are synced instead of archived).
A workload of its own process compiles with torch.compile (matrix products in the mode max-autotune, one step of a small
transformer) and runs a kernel of Triton that is autotuned. It runs three times: cold in a fresh root; restored into
another root; and, to tell what the restore is worth, once more in that root. A short table comes last; the exit status
is 1 if the restored run missed what it should have found.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
STEPS = ("matmul", "transformer", "triton")
#: Seconds for one run of the workload, of which there are three.
TIMEOUT = 140


# --- the workload: what runs in a process of its own -------------------------------------------


def workload() -> None:
    """Compile and run everything, and print what it took and what the compilers' caches did."""
    started = time.monotonic()
    import torch
    from torch._dynamo.utils import counters

    measured = count_benchmarks()
    torch.manual_seed(0)
    told: dict[str, Any] = {"import": time.monotonic() - started}
    for name, step in (("matmul", _matmuls), ("transformer", _transformer), ("triton", _autotuned)):
        begun = time.monotonic()
        told[f"{name}_sum"] = step()
        torch.cuda.synchronize()
        told[name] = time.monotonic() - begun
    inductor, aot = counters["inductor"], counters["aot_autograd"]
    told["fxgraph"] = [inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"]]
    told["aotautograd"] = [aot["autograd_cache_hit"], aot["autograd_cache_miss"]]
    told["measured"] = measured
    versions = (f"Python {platform.python_version()}", f"torch {torch.__version__}", f"Triton {triton.__version__}")
    told["on"] = ", ".join((torch.cuda.get_device_name(), *versions))
    print(json.dumps(told))


def count_benchmarks() -> Counter[str]:
    """Count what Inductor measures from now on: `all`, and those of each kernel, by its name.

    Its own counters do not tell: with a graph that is a hit, they go up by what was measured when it was compiled.
    """
    from torch._inductor.runtime import benchmarking, triton_heuristics

    measured = Counter[str]()

    def count(owner: type, method: str, name: Callable[[Any], str]) -> None:
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def outer(self: object, *arguments: object, **options: object) -> object:
            measured[name(self)] += 1
            return inner(self, *arguments, **options)

        setattr(owner, method, outer)

    count(type(benchmarking.benchmarker), "benchmark_gpu", lambda _: "all")
    count(triton_heuristics.CachingAutotuner, "bench", lambda tuner: tuner.fn.__name__)
    return measured


def _matmuls() -> float:
    """Run products of several shapes, each with the fastest kernel of many: the mode max-autotune-no-cudagraphs.

    But for coordinate descent before torch 2.12, which runs again in each process (docs/kernel-cache.md).
    """
    import torch

    descends = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)

    @torch.compile(options={"max_autotune": True, "coordinate_descent_tuning": descends})
    def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w + bias)

    total = 0.0
    for rows, inner, columns in ((512, 1024, 2048), (2048, 512, 512)):
        x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(inner, columns, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
        torch._dynamo.reset()
        total += product(x, w, bias).float().mean().item()
    return total


def _transformer() -> float:
    """Run one training step of two transformer layers."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 4, dim_feedforward=512, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).cuda()
    compiled = torch.compile(model)
    loss = compiled(torch.randn(4, 64, 256, device="cuda")).square().mean()
    loss.backward()
    return float(loss.item())


def _autotuned() -> float:
    """Run the autotuned kernel, which Triton's own tuner measures in every configuration."""
    import torch
    import triton

    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    out = torch.empty_like(x)
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return float(out.double().mean().item())


if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.autotune(
        configs=[triton.Config({"BLOCK": 1 << power}, num_warps=warps) for power in (8, 10, 12) for warps in (4, 8)],
        key=["n"],
    )
    @triton.jit
    def scale(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, N803
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + index, tl.load(x + index, mask=index < n) * 2, mask=index < n)


# --- the steps ---------------------------------------------------------------------------------


def archpatch(*arguments: object, quiet: bool = False) -> dict[str, Any]:
    """Run a command of `archpatch cache` and return what `--json` says."""
    command = [sys.executable, "-m", "archpatch", "cache", *map(str, arguments), "--json"]
    # -m looks in the working folder first: the archpatch beside this script is the one that is tested.
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if not quiet and done.stderr:
        print(done.stderr.strip()[-1500:], flush=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:5])}: exit {done.returncode}: {done.stderr[-1500:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def run_in(root: Path, name: str) -> dict[str, Any]:
    """Run the workload with its caches below a root, and a home and temporary folder of its own."""
    home = root.parent / f"home-{name}"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    variables = archpatch("env", "--root", root, quiet=True)["environment"]
    # Another home, but not other packages: pip may have put some below the old one.
    place = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONUSERBASE": site.getuserbase()}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--workload"],
        env={**os.environ, **variables, **place},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: exit {done.returncode}\n{done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told["process"] = time.monotonic() - begun
    found = archpatch("report", "--root", root, quiet=True)
    told["report"] = {counts["name"]: counts for counts in found["compilers"]}
    told["missed"] = [counts["name"] for counts in found["kernels"] if counts["missed"]]
    told["outside"] = [each["path"] for each in found["outside"]]
    tables = [path for path in root.rglob("*.autotune.json") if path.is_file()]
    told["tuned"] = [len(tables), max((path.stat().st_mtime for path in tables), default=0.0)]
    print(f"{name}: {json.dumps({key: told[key] for key in told if key != 'report'})}", flush=True)
    return told


def move(work: Path) -> dict[str, Any]:
    """Save the first root and restore it into the second; the first is gone then."""
    job = ("--lane", "gpu-check")
    if importlib.util.find_spec("zstandard") is None:
        print("no zstandard: the folders are synced instead", flush=True)
        archpatch("sync", "--root", work / "first", "--to", work / "shared")
        archpatch("sync", "--root", work / "second", "--from", work / "shared")
        told = {"way": "sync"}
    else:
        begun = time.monotonic()
        saved = archpatch("save", "--root", work / "first", "--store", work / "store", *job)
        middle = time.monotonic()
        restored = archpatch("restore", "--root", work / "second", "--store", work / "store", *job)
        told = {
            "way": f"archive of {Path(saved['archive']).stat().st_size / 1e6:.1f} MB ({saved['size'] / 1e6:.1f} MB of "
            f"files, {saved['entries']} entries), saved in {middle - begun:.1f} s, restored in "
            f"{time.monotonic() - middle:.1f} s, {len(restored['left_out'])} left out",
        }
    (work / "first").rename(work / "gone")
    return told


def row(name: str, told: dict[str, Any]) -> str:
    """Return a row of the table."""
    triton = told["report"].get("triton", {})
    inductor = told["report"].get("inductor", {})
    cells = [
        name,
        *(f"{told[step]:.1f}" for step in ("process", *STEPS)),
        *("/".join(map(str, told[cache])) for cache in ("fxgraph", "aotautograd")),
        f"{triton.get('hit', 0)}/{triton.get('missed', 0)}",
        f"{inductor.get('hit', 0)}/{inductor.get('missed', 0)}",
        str(told["measured"].get("all", 0)),
    ]
    return " | ".join(cells)


HEADER = (
    "run | process s | matmul s | transformer s | triton s | fxgraph hit/miss | aotautograd hit/miss | "
    "Triton entries used/new | Inductor entries used/new | benchmarks"
)


def wrong(cold: dict[str, Any], warm: dict[str, Any]) -> list[str]:
    """Return what the restored run should have found and did not."""
    found = []
    if warm["missed"]:
        found.append(f"kernels of Triton compiled again: {', '.join(warm['missed'])}")
    if warm["fxgraph"][1] or warm["aotautograd"][1]:
        found.append("graphs were compiled again")
    if warm["measured"]:
        found.append(f"Inductor's autotuning ran again: {', '.join(warm['measured'])}")
    if any(abs(cold[f"{name}_sum"] - warm[f"{name}_sum"]) > 1e-2 for name in STEPS):
        found.append("other results")
    return found


def steps(work: Path) -> int:
    """Run the steps and print the table."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    archpatch("restore", "--root", work / "first", "--store", work / "store", "--lane", "gpu-check")
    cold = run_in(work / "first", "cold")
    moved = move(work)
    restored_at = time.time()
    warm = run_in(work / "second", "restored")
    again = run_in(work / "second", "again")
    tuned_again = warm["tuned"][1] > restored_at
    faults = wrong(cold, warm)
    if tuned_again:
        faults.append("Triton's autotuning ran again")
    if (work / "first").exists():
        faults.append("something was written where the first root had been")
    print(f"\n{cold['on']}\n{HEADER}")
    for name, told in (("cold", cold), ("restored", warm), ("again", again)):
        print(row(name, told))
    print(f"moved by: {moved['way']}")
    print(f"autotuning of Triton: {cold['tuned'][0]} tables kept, ran again after the restore: {tuned_again}")
    print(f"written outside the root: {', '.join(cold['outside']) or 'nothing'}")
    before, after = (sum(told[step] for step in STEPS) for told in (cold, warm))
    print(f"first steps: {before:.1f} s cold, {after:.1f} s restored ({(after - before) / before:+.0%})")
    print("; ".join(faults) if faults else "every kernel and graph was found again")
    return int(bool(faults))


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("kernel-cache-work"))
    parser.add_argument("--workload", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.workload:
        workload()
        return 0
    if "PYTHONPATH" in os.environ:  # the processes to come run in other folders
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))
    try:
        return steps(arguments.work.resolve())
    except Exception as error:
        print(f"FAILED: {str(error)[-4000:]}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
