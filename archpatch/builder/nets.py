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
from archpatch.builder.cmake import ByVariable
from archpatch.errors import DeviceCodeMismatch, KnownBadArch, NoMatchingArch, NoSources, SetupRefused
from archpatch.wheels.elf import Binary
from archpatch.wheels.inspection import Inspection

__all__ = [
    "ANOTHER_TOOLKIT",
    "Expected",
    "Explain",
    "check_flags",
    "check_guarded",
    "check_known_bad",
    "check_none_lost_all",
    "check_wheel",
    "listed",
    "selected_at_all",
    "untold",
]

#: What each extension must hold, by its full name.
Expected = Mapping[str, frozenset[DeviceCode]]
#: Says of device code in the text of `setup.py` why it comes to nothing.
Explain = Callable[[Iterable[DeviceCode]], str]

#: What to do about a pair that stands under a condition which is false for this toolkit.
ANOTHER_TOOLKIT = "Use another toolkit (--toolkit), or ask for what it compiles with this one."
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
    explain: Explain,
) -> Expected:
    """Check what nvcc would be told against what was selected, and return what each CUDA extension must hold.

    `selection` is what the rewrite did, None where the file has no pairs of its own. `unpatched` captures the original
    `setup.py`; it is called only where an extension may have lost all its pairs, and `explain` says of selected pairs
    why they come to nothing. Raises `NoSources` where nothing would be compiled, `NoMatchingArch` where an extension
    lost all or holds nothing for a GPU, and `SetupRefused` where flags appear that the rewrite did not see.
    """
    _require_cuda(seen)
    if selection is not None:
        check_none_lost_all(seen, selection, unpatched=unpatched, explain=explain)
    hidden = untold(seen, selection) if selection is not None else None
    for extension in seen.cuda_extensions:
        _check_extension(extension, request, policy, selection)
        _check_gpus(extension, request, explain(hidden) if hidden else None)
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
            _check_gpus(extension, request, None)
            continue
        wanted = select(before.pairs, request, policy).device_code
        if extension.device_code != wanted:
            raise SetupRefused(
                f"extension {extension.name}: nvcc would be told {listed(extension.device_code)} instead of "
                f"{listed(wanted)}",
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
    if not seen.cuda_extensions and not seen.cmake_extensions:
        raise NoSources(
            "setup.py builds no CUDA extension here: the wheel would hold no device code",
            remedy="The package may need a variable (see its recipe), or has nothing to compile ahead of time.",
        )


def check_none_lost_all(
    seen: Capture, selection: Selection, *, unpatched: Callable[[], Capture], explain: Explain
) -> None:
    """Raise `NoMatchingArch` for an extension that had pairs of its own and lost them all.

    torch then adds flags, and hides it. Where the pairs that were selected come to nothing, that is why.
    """
    suspects = {extension.name for extension in seen.cuda_extensions if not extension.has_own_pairs}
    if not suspects:
        return
    told = {code for extension in seen.cuda_extensions if extension.has_own_pairs for code in extension.device_code}
    for extension in unpatched().cuda_extensions:
        if extension.name in suspects and extension.has_own_pairs:
            message = f"extension {extension.name}: nothing remains of {listed(extension.device_code)}"
            hidden = selection.device_code - told - extension.device_code
            if hidden:
                raise NoMatchingArch(f"{message}; {explain(hidden)}", remedy=ANOTHER_TOOLKIT)
            raise NoMatchingArch(message, remedy="Ask for one of these, or use --on-missing nearest or add.")


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
            f"extension {extension.name}: setup.py adds {listed(stray)}, which nobody asked for, in a way that the "
            "rewrite does not see",
            remedy="Set the package's own arch variable in a recipe ([tool.archpatch.recipes]), or report the package.",
        )
    check_known_bad(extension.name, codes, policy)


def _check_gpus(extension: CapturedExtension, request: Request, why: str | None) -> None:
    """Raise where a GPU would have nothing to run; `why` tells of pairs that would, and come to nothing."""
    codes = extension.device_code
    gpus = request.gpus if isinstance(request, GpuRequest) else ()
    unserved = [f"{gpu.name} ({gpu.arch})" for gpu in gpus if best_for(codes, gpu.arch)[1] is Verdict.NO]
    if unserved:
        raise NoMatchingArch(
            f"extension {extension.name} would hold {listed(codes)}, and nothing that {', '.join(unserved)} runs"
            + (f"; {why}" if why else ""),
            remedy=ANOTHER_TOOLKIT if why else _FALSE_CONDITION,
        )


def check_known_bad(name: str, codes: Iterable[DeviceCode], policy: Policy) -> None:
    """Raise `KnownBadArch` where the extension `name` would hold cubins of an arch that is known bad."""
    bad = {entry.arch.base: entry.reason for entry in policy.known_bad}
    wrong = [code for code in codes if not code.ptx and code.arch.base in bad]
    if wrong:
        raise KnownBadArch(
            f"extension {name}: {listed(wrong)} is known bad: {bad[wrong[0].arch.base]}",
            remedy="Ask for another arch; --allow-known-bad takes it as it is.",
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
    return selection.device_code - seen.device_code


def check_wheel(inspection: Inspection, expected: Expected, by_cmake: Iterable[ByVariable] = ()) -> tuple[str, ...]:
    """Check that each extension in a wheel holds exactly what was captured; return notes on other device code.

    What CMake makes for an extension can lie anywhere: where its own library holds no device code, every library that
    belongs to no other extension is judged. Raises `DeviceCodeMismatch`, which names what is missing and what is too
    much.
    """
    by_name = {name: _binary_of(name, inspection.files) for name in expected}
    made = {each.name: each for each in by_cmake}
    for name, wanted in expected.items():
        binary = by_name[name]
        if name in made and (binary is None or not binary.device_code):
            continue
        if binary is None:
            raise DeviceCodeMismatch(
                f"the wheel holds no library for the extension {name}", remedy="Report the package: see the log."
            )
        _judge(f"the extension {name}", binary, wanted, made.get(name))
    known = {binary.path for binary in by_name.values() if binary is not None}
    others = [binary for binary in inspection.files if binary.path not in known and binary.device_code]
    if made:
        _judge_made(made, by_name, others)
        return ()
    return tuple(
        f"{binary.path} holds {listed(binary.device_code)}; it is no extension of setup.py: not judged"
        for binary in others
    )


def _judge_made(made: Mapping[str, ByVariable], by_name: Mapping[str, Binary | None], others: Iterable[Binary]) -> None:
    """Check the libraries that CMake made beside those that are named as an extension."""
    libraries = [binary for binary in others if not binary.is_cubin]
    for name, each in made.items():
        own = by_name[name]
        if not libraries and (own is None or not own.device_code):
            raise DeviceCodeMismatch(
                f"the wheel holds no library with device code for the extension {name}, whose CMake files build CUDA",
                remedy=_look_at(each),
            )
    for library in libraries:
        fitting = [each for each in made.values() if each.codes == frozenset(library.device_code)]
        each = (*fitting, *made.values())[0]
        _judge(f"the library {library.path}", library, each.codes, each)


def _judge(what: str, binary: Binary, wanted: frozenset[DeviceCode], made: ByVariable | None) -> None:
    """Check one library, each of its translation units too."""
    remedy = _LOOK if made is None else _look_at(made)
    held = frozenset(binary.device_code)
    if held != wanted:
        raise DeviceCodeMismatch(_difference(what, wanted, held), remedy=remedy)
    uneven = [part for part in binary.parts if part != wanted]
    if uneven:
        raise DeviceCodeMismatch(
            f"{what} holds files with {listed(uneven[0])} alone, of {listed(wanted)}", remedy=remedy
        )


def _look_at(made: ByVariable) -> str:
    return (
        f"The archs were given by {made.setting}. The project's CMake files read another variable, or spell archs in "
        "another form (arch-variable in a recipe), or name archs of their own. Nothing was published."
    )


def _difference(what: str, wanted: frozenset[DeviceCode], held: frozenset[DeviceCode]) -> str:
    parts = [f"{what} holds {listed(held)}; nvcc was asked for {listed(wanted)}"]
    if wanted - held:
        parts.append(f"missing: {listed(wanted - held)}")
    if held - wanted:
        parts.append(f"too much: {listed(held - wanted)}")
    return "; ".join(parts)


def _binary_of(name: str, files: Iterable[Binary]) -> Binary | None:
    """Return the library of an extension: `a.b` is `a/b.cpython-311-x86_64-linux-gnu.so` in a wheel."""
    *package, stem = name.split(".")
    for file in files:
        path = PurePosixPath(file.path)
        if path.name.split(".")[0] == stem and path.parts[-len(package) - 1 : -1] == tuple(package):
            return file
    return None


def listed(codes: Iterable[DeviceCode]) -> str:
    """Return device code as people read it: cubins by arch, then PTX."""
    return ", ".join(map(str, sorted(codes, key=lambda code: (code.ptx, code.arch)))) or "no device code"
