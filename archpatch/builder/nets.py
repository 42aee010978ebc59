"""Two nets after the rewrite: nvcc will be told what was selected, and the wheel holds what nvcc was told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.arch.coverage import Verdict, best_for, runs_on
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import Policy, Request, Selection, select
from archpatch.builder.capture import Capture, CapturedExtension
from archpatch.errors import DeviceCodeMismatch, KnownBadArch, NoMatchingArch, NoSources, SetupRefused
from archpatch.wheels.elf import Binary
from archpatch.wheels.inspection import Inspection

__all__ = ["Expected", "check_flags", "check_guarded", "check_wheel", "selected_at_all", "untold"]

#: What each extension must hold, by its full name.
Expected = Mapping[str, frozenset[DeviceCode]]

_FALSE_CONDITION = "A pair can stand in setup.py under a condition that this toolkit's version makes false."
_LOOK = (
    "Something between setup.py and nvcc changes the flags: a wrapper (PYTORCH_NVCC, a compiler cache) or a profile "
    "file (nvcc.profile). Nothing was published."
)


def check_flags(
    seen: Capture,
    *,
    request: Request,
    policy: Policy,
    selection: Selection | None,
    unpatched: Callable[[], Capture],
) -> Expected:
    """Check what nvcc would be told against what was selected, and return what each CUDA extension must hold.

    `selection` is what the rewrite did, None where the file has no pairs of its own. `unpatched` captures the original
    `setup.py`; it is called only where an extension may have lost all its pairs. Raises `NoSources` where nothing would
    be compiled, `NoMatchingArch` where an extension lost all or holds nothing for a GPU, and `SetupRefused` where flags
    appear that the rewrite did not see.
    """
    _require_cuda(seen)
    if selection is not None:
        _check_none_lost_all(seen, unpatched)
    for extension in seen.cuda_extensions:
        _check_extension(extension, request, policy, selection)
    return {extension.name: extension.device_code for extension in seen.cuda_extensions}


def check_guarded(seen: Capture, original: Capture, *, request: Request, policy: Policy) -> Expected:
    """Check what nvcc would be told after a guard, which selects when `setup.py` runs; return as `check_flags`.

    The guard is not believed: what each extension of the `original` file is told is put through the selection once
    more, and has to come to the same. Raises as `check_flags` does.
    """
    _require_cuda(seen)
    had = {extension.name: extension for extension in original.cuda_extensions}
    for extension in seen.cuda_extensions:
        before = had.get(extension.name)
        if before is None or not before.has_own_pairs:
            _check_extension(extension, request, policy, None)
            continue
        wanted = select(before.pairs, request, policy).device_code
        if extension.device_code != wanted:
            raise SetupRefused(
                f"extension {extension.name}: nvcc would be told {_listed(extension.device_code)} instead of "
                f"{_listed(wanted)}",
                remedy="setup.py changes flags after the guard: set the package's own arch variable in a recipe.",
            )
    return {extension.name: extension.device_code for extension in seen.cuda_extensions}


def selected_at_all(original: Capture, request: Request, policy: Policy) -> frozenset[DeviceCode]:
    """Return what the request takes of the extensions' own pairs, all together."""
    codes: set[DeviceCode] = set()
    for extension in original.cuda_extensions:
        if extension.has_own_pairs:
            with contextlib.suppress(NoMatchingArch):
                codes |= select(extension.pairs, request, policy).device_code
    return frozenset(codes)


def _require_cuda(seen: Capture) -> None:
    if not seen.cuda_extensions:
        raise NoSources(
            "setup.py builds no CUDA extension here: the wheel would hold no device code",
            remedy="The package may need a variable (see its recipe), or has nothing to compile ahead of time.",
        )


def _check_none_lost_all(seen: Capture, unpatched: Callable[[], Capture]) -> None:
    """Raise for an extension that had pairs of its own and lost them all: torch then adds flags, and hides it."""
    suspects = {extension.name for extension in seen.cuda_extensions if not extension.has_own_pairs}
    if not suspects:
        return
    for extension in unpatched().cuda_extensions:
        if extension.name in suspects and extension.has_own_pairs:
            raise NoMatchingArch(
                f"extension {extension.name}: nothing remains of {_listed(extension.device_code)}",
                remedy=f"Ask for one of these, or use --on-missing nearest or add. {_FALSE_CONDITION}",
            )


def _check_extension(
    extension: CapturedExtension, request: Request, policy: Policy, selection: Selection | None
) -> None:
    codes = extension.device_code
    if not codes:
        raise SetupRefused(
            f"extension {extension.name}: nvcc would be told no arch and would compile for its default",
            remedy="Set the package's own arch variable in a recipe, or report the package.",
        )
    stray = [code for code in codes if not _was_asked_for(code, request, extension, selection)]
    if stray:
        raise SetupRefused(
            f"extension {extension.name}: setup.py adds {_listed(stray)}, which nobody asked for, in a way that the "
            "rewrite does not see",
            remedy="Set the package's own arch variable in a recipe ([tool.archpatch.recipes]), or report the package.",
        )
    bad = {entry.arch.base: entry.reason for entry in policy.known_bad}
    wrong = [code for code in codes if not code.ptx and code.arch.base in bad]
    if wrong:
        raise KnownBadArch(
            f"extension {extension.name}: {_listed(wrong)} is known bad: {bad[wrong[0].arch.base]}",
            remedy="Ask for another arch; --allow-known-bad takes it as it is.",
        )
    gpus = request.gpus if isinstance(request, GpuRequest) else ()
    unserved = [f"{gpu.name} ({gpu.arch})" for gpu in gpus if best_for(codes, gpu.arch)[1] is Verdict.NO]
    if unserved:
        raise NoMatchingArch(
            f"extension {extension.name} would hold {_listed(codes)}, and nothing that {', '.join(unserved)} runs",
            remedy=_FALSE_CONDITION,
        )


def _was_asked_for(
    code: DeviceCode, request: Request, extension: CapturedExtension, selection: Selection | None
) -> bool:
    if selection is not None and extension.has_own_pairs:
        return code in selection.device_code
    if isinstance(request, ArchRequest):
        return code in request.device_code
    return any(runs_on(code, gpu.arch) is not Verdict.NO for gpu in request.gpus)


def untold(seen: Capture, selection: Selection) -> frozenset[DeviceCode]:
    """Return what was selected from the text and is told to nvcc for no extension: its condition is false here."""
    told = {code for extension in seen.cuda_extensions for code in extension.device_code}
    return selection.device_code - told


def check_wheel(inspection: Inspection, expected: Expected) -> tuple[str, ...]:
    """Check that each extension in a wheel holds exactly what was captured; return notes on other device code.

    Raises `DeviceCodeMismatch`, which names what is missing and what is too much.
    """
    by_name = {name: _binary_of(name, inspection.files) for name in expected}
    for name, wanted in expected.items():
        binary = by_name[name]
        if binary is None:
            raise DeviceCodeMismatch(
                f"the wheel holds no library for the extension {name}", remedy="Report the package: see the log."
            )
        held = frozenset((*binary.cubins, *binary.ptx))
        if held != wanted:
            raise DeviceCodeMismatch(_difference(name, wanted, held), remedy=_LOOK)
        uneven = [part for part in binary.parts if part != wanted]
        if uneven:
            raise DeviceCodeMismatch(
                f"the extension {name} holds files with {_listed(uneven[0])} alone, of {_listed(wanted)}",
                remedy=_LOOK,
            )
    known = {binary.path for binary in by_name.values() if binary is not None}
    return tuple(
        f"{binary.path} holds {_listed((*binary.cubins, *binary.ptx))}; it is no extension of setup.py: not judged"
        for binary in inspection.files
        if binary.path not in known and (binary.cubins or binary.ptx)
    )


def _difference(name: str, wanted: frozenset[DeviceCode], held: frozenset[DeviceCode]) -> str:
    parts = [f"the extension {name} holds {_listed(held)}; nvcc was asked for {_listed(wanted)}"]
    if wanted - held:
        parts.append(f"missing: {_listed(wanted - held)}")
    if held - wanted:
        parts.append(f"too much: {_listed(held - wanted)}")
    return "; ".join(parts)


def _binary_of(name: str, files: Iterable[Binary]) -> Binary | None:
    """Return the library of an extension: `a.b` is `a/b.cpython-311-x86_64-linux-gnu.so` in a wheel."""
    *package, stem = name.split(".")
    for file in files:
        path = PurePosixPath(file.path)
        if path.name.split(".")[0] == stem and path.parts[-len(package) - 1 : -1] == tuple(package):
            return file
    return None


def _listed(codes: Iterable[DeviceCode]) -> str:
    return ", ".join(map(str, sorted(codes, key=lambda code: (code.ptx, code.arch)))) or "no device code"
