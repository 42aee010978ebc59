from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import KnownBad, Policy, Request, Selection, select
from archpatch.builder.capture import Capture, CapturedExtension
from archpatch.builder.cmake import ByVariable
from archpatch.builder.nets import check_flags, check_guarded, check_wheel, listed, selected_at_all, untold
from archpatch.errors import (
    ArchpatchError,
    CaptureFailed,
    DeviceCodeMismatch,
    NoMatchingArch,
    NoSources,
    SetupRefused,
)
from archpatch.wheels.elf import Binary, Needs
from archpatch.wheels.inspection import Inspection

PLAIN = Policy()
SELECTION = select([Pair.of(DeviceCode.parse(c)) for c in ("sm_80", "sm_90")], ArchRequest.parse("9.0"), Policy())


def gencode(*codes: str) -> tuple[str, ...]:
    return tuple(f"-gencode=arch=compute_{code.partition('_')[2]},code={code}" for code in codes)


def extension(*codes: str, name: str = "ext", by_torch: bool = False) -> CapturedExtension:
    flags = gencode(*codes)
    return CapturedExtension(
        name=name, sources=(Path("a.cu"),), nvcc=("-O3", *flags), torch_added=flags if by_torch else ()
    )


def capture(*extensions: CapturedExtension) -> Capture:
    return Capture(name="p", version="1", extensions=extensions)


def never() -> Capture:
    raise AssertionError("the original need not be captured here")


def explain(codes: Iterable[DeviceCode]) -> str:
    return f"{listed(codes)} is hidden"


def check(
    seen: Capture,
    request: str = "9.0",
    selection: Selection | None = SELECTION,
    unpatched: Callable[[], Capture] = never,
    policy: Policy = PLAIN,
) -> dict[str, set[str]]:
    asked: Request = ArchRequest.parse(request) if request[0].isdecimal() else GpuRequest.of(request)
    expected = check_flags(
        seen, request=asked, policy=policy, selection=selection, unpatched=unpatched, explain=explain
    )
    return {name: set(map(str, codes)) for name, codes in expected.items()}


def test_what_was_selected_is_expected() -> None:
    plain = CapturedExtension(name="cpp", sources=(Path("b.cpp"),), nvcc=None)
    assert check(capture(extension("sm_90"), plain)) == {"ext": {"sm_90"}}


def test_an_extension_without_pairs_of_its_own_is_torchs() -> None:
    seen = capture(extension("sm_90", by_torch=True))
    assert check(seen, selection=None) == {"ext": {"sm_90"}}
    assert check(seen, unpatched=lambda: seen) == {"ext": {"sm_90"}}


def test_a_gpu_takes_torchs_pairs_that_run_on_it() -> None:
    assert check(capture(extension("sm_90", "compute_90", by_torch=True)), "h200", None) == {
        "ext": {"sm_90", "compute_90"}
    }
    with pytest.raises(SetupRefused):
        check(capture(extension("sm_90", "sm_100", by_torch=True)), "h200", None)


def test_an_extension_that_lost_all_its_pairs_is_found_behind_torchs() -> None:
    with pytest.raises(NoMatchingArch, match=r"extension ext: nothing remains of sm_80; sm_90 is hidden") as caught:
        check(capture(extension("sm_90", by_torch=True)), unpatched=lambda: capture(extension("sm_80")))
    assert str(caught.value.remedy).startswith("Use another toolkit")


def test_an_extension_that_never_had_what_another_keeps_has_nothing_hidden() -> None:
    kept = extension("sm_90", name="other")
    with pytest.raises(NoMatchingArch, match=r"extension ext: nothing remains of sm_80\nAsk for one of these"):
        check(
            capture(extension("sm_90", by_torch=True), kept),
            unpatched=lambda: capture(extension("sm_80"), kept),
        )


@pytest.mark.parametrize(
    ("seen", "request_", "selection", "error", "says"),
    [
        (capture(), "9.0", SELECTION, NoSources, "no CUDA extension"),
        (capture(extension("sm_90", "sm_100")), "9.0", SELECTION, SetupRefused, "adds sm_100"),
        (capture(extension("sm_80")), "9.0", None, SetupRefused, "adds sm_80"),
    ],
)
def test_what_was_not_selected_is_refused(
    seen: Capture, request_: str, selection: Selection | None, error: type[ArchpatchError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check(seen, request_, selection)


def test_each_gpu_has_to_have_something_to_run() -> None:
    request = GpuRequest.of("h200", "l4")
    both = select([Pair.of(DeviceCode.parse(c)) for c in ("sm_80", "sm_90")], request, Policy())
    with pytest.raises(NoMatchingArch, match=r"would hold sm_80, and nothing that h200 \(9.0\) runs; sm_90 is hidden"):
        check_flags(
            capture(extension("sm_80")),
            request=request,
            policy=Policy(),
            selection=both,
            unpatched=never,
            explain=explain,
        )


def test_a_known_bad_arch_is_not_compiled_by_torch_either() -> None:
    policy = Policy(known_bad=(KnownBad(arch=Arch(9, 0), reason="issue 105"),))
    with pytest.raises(NoMatchingArch, match="sm_90 is known bad: issue 105"):
        check(capture(extension("sm_90", by_torch=True)), selection=None, policy=policy)


def test_what_stands_under_a_false_condition_is_told() -> None:
    both = select([Pair.of(DeviceCode.parse(c)) for c in ("sm_80", "sm_90")], ArchRequest.parse("8.0;9.0"), Policy())
    assert untold(capture(extension("sm_80")), both) == {DeviceCode.parse("sm_90")}
    assert untold(capture(extension("sm_80"), extension("sm_90", name="other")), both) == frozenset()


def test_no_arch_at_all_is_refused() -> None:
    bare = CapturedExtension(name="ext", sources=(), nvcc=("-O3",))
    with pytest.raises(SetupRefused, match="told no arch"):
        check(capture(bare), unpatched=lambda: capture(bare))


def test_flags_that_nvcc_refuses_are_refused_here() -> None:
    orphan = CapturedExtension(name="ext", sources=(), nvcc=("-gencode", "-O3"))
    with pytest.raises(CaptureFailed, match="-gencode without a value"):
        check(capture(orphan))


def guarded(seen: Capture, original: Capture, request: str = "9.0") -> dict[str, set[str]]:
    asked: Request = ArchRequest.parse(request) if request[0].isdecimal() else GpuRequest.of(request)
    expected = check_guarded(seen, original, request=asked, policy=Policy())
    return {name: set(map(str, codes)) for name, codes in expected.items()}


def test_a_guard_is_checked_against_what_the_original_comes_to() -> None:
    original = capture(extension("sm_80", "sm_90"), extension("sm_90", by_torch=True, name="torchs"))
    seen = capture(extension("sm_90"), extension("sm_90", by_torch=True, name="torchs"))
    assert guarded(seen, original) == {"ext": {"sm_90"}, "torchs": {"sm_90"}}
    assert guarded(capture(extension("sm_80")), original, "l4") == {"ext": {"sm_80"}}
    with pytest.raises(SetupRefused, match="told sm_80, sm_90 instead of sm_90"):
        guarded(original, original)
    with pytest.raises(NoSources):
        guarded(capture(), original)


def test_what_is_selected_at_all_is_for_the_packages_own_variable() -> None:
    original = capture(
        extension("sm_80", "sm_90"), extension("sm_100", name="b"), extension("sm_75", name="c", by_torch=True)
    )
    codes = selected_at_all(original, ArchRequest.parse("9.0"), Policy())
    assert set(map(str, codes)) == {"sm_90"}


def binary(path: str, *codes: str, parts: tuple[str, ...] = ()) -> Binary:
    parsed = tuple(map(DeviceCode.parse, codes))
    return Binary(
        path=path,
        machine="x86_64",
        cubins=tuple(code for code in parsed if not code.ptx),
        ptx=tuple(code for code in parsed if code.ptx),
        other=(),
        parts=tuple(frozenset(map(DeviceCode.parse, part.split())) for part in parts),
        needs=Needs(glibc=None, glibcxx=None),
    )


EXPECTED = {
    "ext": frozenset({DeviceCode.parse("sm_90")}),
    "pkg._C": frozenset(map(DeviceCode.parse, ("sm_90", "compute_90"))),
}
RIGHT = (
    binary("ext.cpython-311-x86_64-linux-gnu.so", "sm_90"),
    binary("pkg/_C.abi3.so", "sm_90", "compute_90"),
)


def test_a_wheel_that_holds_what_was_captured_passes() -> None:
    assert check_wheel(Inspection(files=RIGHT), EXPECTED) == ()


def test_other_device_code_is_told_not_judged() -> None:
    notes = check_wheel(
        Inspection(files=(*RIGHT, binary("pkg/libvendor.so", "sm_80"), binary("pkg/plain.so"))), EXPECTED
    )
    assert notes == ("pkg/libvendor.so holds sm_80; it is no extension of setup.py: not judged",)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((RIGHT[1],), "no library for the extension ext"),
        ((RIGHT[0], binary("other/_C.so", "sm_90", "compute_90")), "no library for the extension pkg._C"),
        ((binary("ext.so", "sm_90", "sm_80"), RIGHT[1]), "too much: sm_80"),
        ((binary("ext.so"), RIGHT[1]), "the extension ext holds no device code; .* missing: sm_90"),
        ((RIGHT[0], binary("pkg/_C.so", "sm_90")), "missing: compute_90"),
        (
            (RIGHT[0], binary("pkg/_C.so", "sm_90", "compute_90", parts=("sm_90 compute_90", "sm_90"))),
            "holds files with sm_90 alone",
        ),
    ],
)
def test_a_wheel_that_holds_something_else_is_caught(files: tuple[Binary, ...], says: str) -> None:
    with pytest.raises(DeviceCodeMismatch, match=says) as caught:
        check_wheel(Inspection(files=files), EXPECTED)
    assert caught.value.exit_status == 4


LIBRARY = "pkg/lib/libkernels.so"


def by_cmake(*codes: str, name: str = "pkg._C") -> ByVariable:
    return ByVariable(name=name, codes=frozenset(map(DeviceCode.parse, codes)), setting="MY_ARCHS=90-real", line=30)


@pytest.mark.parametrize(
    "files",
    [
        (binary("pkg/_C.so", "sm_90"),),
        (binary("pkg/_C.so"), binary(LIBRARY, "sm_90")),
        (binary("pkg/_C.so", "sm_90"), binary(LIBRARY, "sm_90"), binary("pkg/plain.so")),
        (binary(LIBRARY, "sm_90"), binary("pkg/lib/libmore.so", "sm_90", parts=("sm_90",))),
    ],
)
def test_what_cmake_made_may_lie_anywhere(files: tuple[Binary, ...]) -> None:
    made = by_cmake("sm_90")
    assert check_wheel(Inspection(files=files), {made.name: made.codes}, [made]) == ()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((), "holds no library with device code for the extension pkg._C, whose CMake files build CUDA"),
        ((binary("pkg/_C.so"),), "holds no library with device code for the extension pkg._C"),
        ((binary("pkg/_C.so", "sm_80", "sm_90"),), "the extension pkg._C holds sm_80, sm_90; .* too much: sm_80"),
        ((binary("pkg/_C.so", "sm_90"), binary(LIBRARY, "sm_80")), f"the library {LIBRARY} holds sm_80"),
        ((binary(LIBRARY, "sm_90", "compute_90"),), f"the library {LIBRARY} .* too much: compute_90"),
        ((binary(LIBRARY, "sm_90", parts=("",)),), f"the library {LIBRARY} holds files with no device code alone"),
    ],
)
def test_what_cmake_made_must_hold_what_was_asked_for(files: tuple[Binary, ...], says: str) -> None:
    made = by_cmake("sm_90")
    with pytest.raises(DeviceCodeMismatch, match=says) as caught:
        check_wheel(Inspection(files=files), {made.name: made.codes}, [made])
    assert "The archs were given by MY_ARCHS=90-real." in str(caught.value.remedy)


def test_torchs_extensions_are_judged_beside_cmakes() -> None:
    made = by_cmake("sm_90a", name="pkg._K")
    expected = {**EXPECTED, made.name: made.codes}
    assert check_wheel(Inspection(files=(*RIGHT, binary(LIBRARY, "sm_90a"))), expected, [made]) == ()
    with pytest.raises(DeviceCodeMismatch, match="the extension ext holds sm_90a"):
        check_wheel(Inspection(files=(binary("ext.so", "sm_90a"), RIGHT[1])), expected, [made])


def test_a_bare_cubin_is_no_library_of_cmakes() -> None:
    made = by_cmake("sm_90")
    loose = Binary(path="pkg/k.cubin", machine="cuda", cubins=(DeviceCode.parse("sm_80"),))
    files = (binary("pkg/_C.so", "sm_90"), loose)
    assert check_wheel(Inspection(files=files), {made.name: made.codes}, [made]) == ()
