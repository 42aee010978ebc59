"""What the guard does inside a `setup.py`: it selects the arch flags of each extension right before its compile.

`archpatch.rewrite.guard` writes the text below the line of dashes into the file, without the annotations. So that text
imports nothing but setuptools and the standard library, runs on Python 3.8, and has no string over several lines. Its
rules are those of `archpatch.arch.gencode`, `coverage` and `selection`, which the tests hold side by side.
"""

# ruff: noqa: ANN401, E402 - what it meets is setuptools' and torch's; its own imports begin below the line

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["ArchpatchNoMatchingArch", "ArchpatchRefusedFlags", "filtered", "install", "keep_selected", "read_flags"]

#: (major, minor, suffix); (arch, whether it is PTX); (compute arch, code); what `archpatch.rewrite.guard` bakes in.
Arch = tuple[int, int, str]
Code = tuple[Arch, bool]
Pair = tuple[Arch, Code]
Request = dict[str, Any]
Families = dict[str, tuple[set[Code], set[Code]]]

# ----------------------------------------------------------------------------------------------------------------------
import os
import re

GENCODE, ARCH, CODE = ("-gencode", "--generate-code"), ("-arch", "--gpu-architecture"), ("-code", "--gpu-code")
OPTIONS = GENCODE + ARCH + CODE
KNOWN = "35 37 50 52 53 60 61 62 70 72 75 80 86 87 88 89 90 100 101 103 107 110 120 121".split()  # noqa: SIM905 - a list of strings would be three lines
TEGRA = "53 62 72 87 101 110".split()  # noqa: SIM905
VALUE = re.compile(
    r"""arch=(compute_\w+),code=(\[[^\[\]"']+\]|\\?["'][^\[\]"'\\]+\\?["']|[^\[\]"',]+)"""
    r"""|code=([^\[\]"',]+),arch=(compute_\w+)"""
)


class ArchpatchNoMatchingArch(SystemExit):
    """An extension has arch flags of its own, and none of them is what was asked for."""


class ArchpatchRefusedFlags(SystemExit):
    """nvcc would refuse these arch flags, or what they compile depends on the machine."""


def number(arch: Sequence[Any]) -> str:
    """Spell an arch like nvcc: 90a."""
    return "".join(map(str, arch))


def dotted(arch: Sequence[Any]) -> str:
    """Spell an arch like a GPU's compute capability: 9.0a."""
    return f"{arch[0]}.{number(arch[1:])}"


def spelled(code: Code) -> str:
    """Spell device code like nvcc: sm_90a, compute_90."""
    return ("compute_" if code[1] else "sm_") + number(code[0])


def read_arch(text: str) -> Arch | None:
    """Read 9.0a, 90a, sm_90a or compute_90a."""
    match = re.fullmatch(r"(?:(?:sm|compute)_)?(?:(\d+)\.(\d)|(\d\d?)(\d))([af]?)", text.lower(), re.ASCII)
    if match is None:
        return None
    major, minor, suffix = int(match[1] or match[3]), int(match[2] or match[4]), match[5]
    known = number((major, minor)) in KNOWN and (not suffix or major >= 9)  # noqa: PLR2004 - suffixes begin at 9.0
    return (major, minor, suffix) if known else None


def read_code(text: str) -> Code | None:
    """Read sm_90a or compute_90."""
    kind = text.partition("_")[0]
    arch = read_arch(text) if kind in ("sm", "compute") else None
    return None if arch is None else (arch, kind == "compute")


def read_pairs(compute: str, codes: Iterable[str]) -> list[Pair] | None:
    """Read one compute arch and the codes that go with it."""
    arch, found = read_arch(compute), [read_code(code) for code in codes]
    return None if arch is None or None in found else [(arch, code) for code in found if code]


def read_gencode(value: str) -> list[Pair] | None:
    """Read the value of a -gencode: arch=compute_80,code=[sm_80,compute_80]."""
    match = VALUE.fullmatch(value.strip())
    if match is None:
        return None
    return read_pairs(match[1] or match[4], re.split(r"\s*,\s*", (match[2] or match[3]).strip("[]\"'\\ ")))


def read_arch_option(arch: str, codes: Sequence[str]) -> list[Pair] | None:
    """Read what -arch and -code mean together."""
    code = read_code(arch)
    if code is None or codes:
        return read_pairs(arch, codes) if code and code[1] else None
    if code[1]:
        return [(code[0], code)]
    plain = (code[0][0], code[0][1], "")
    return list(dict.fromkeys([(code[0], code), (code[0], (code[0], True)), (plain, (plain, True))]))


def read_flags(name: str, words: Sequence[Any]) -> tuple[list[Any], int, list[Pair]]:
    """Split nvcc's arguments into those that are no arch flag, the place of the first arch flag, and the pairs."""
    others, pairs, place, arch, codes = [], [], -1, "", []
    rest = iter(words)
    for word in rest:
        option, equals, value = str(word).partition("=")
        if option not in OPTIONS:
            if read_gencode(option + equals + value) or option.startswith(tuple(one + " " for one in OPTIONS)):
                refuse(name, repr(word))
            others.append(word)
            continue
        place = len(others) if place < 0 else place
        value = value if equals else str(next(rest, ""))
        if option in ARCH and value and value[0] != "-":
            arch = value
        elif option in CODE and value and value[0] != "-":
            codes = value.strip("[]\"'").split(",")
        else:
            pairs += read_gencode(value) or refuse(name, option + " with the value " + repr(value))
    if arch or codes:
        pairs += read_arch_option(arch, codes) or refuse(name, "-arch=" + arch + " -code=" + ",".join(codes))
    return others, place, list(dict.fromkeys(pairs))


def refuse(name: str, what: str) -> NoReturn:
    """Stop: these flags mean no definite device code."""
    raise ArchpatchRefusedFlags(
        f"archpatch: extension {name}: the arch flag {what} is none that nvcc takes, or depends on the machine. "
        "Write option and value of a known arch, or set the package's own arch variable."
    )


def stored(pair: Pair) -> Code:
    """Return what nvcc stores for a pair: compute_100f,code=sm_100 is sm_100f."""
    compute, (arch, ptx) = pair
    return (arch if arch[2] else (arch[0], arch[1], compute[2]), ptx)


def rank(code: Code, gpu: Arch) -> int:
    """Tell how a GPU runs device code: 0 natively, 1 compatible, 2 compiled just in time, 3 not."""
    arch, ptx = code
    related = arch[0] == gpu[0] and arch[1] <= gpu[1] and (number(arch[:2]) in TEGRA) == (number(gpu[:2]) in TEGRA)
    if ptx:
        runs = {"": arch <= gpu, "a": arch[:2] == gpu[:2], "f": related}[arch[2]]
        return 2 if runs else 3
    if arch[:2] == gpu[:2]:
        return 0
    return 1 if related and arch[2] != "a" else 3


def best(codes: Iterable[Code], gpu: Arch) -> tuple[set[Code], int]:
    """Return what a GPU would load, and how it runs."""
    ranks = {code: rank(code, gpu) for code in codes}
    lowest = min(ranks.values(), default=3)
    running = {code for code in ranks if ranks[code] == lowest < 3}  # noqa: PLR2004 - the rank of what does not run
    nearest = max((code[0][:2] for code in running), default=None)
    return {code for code in running if code[0][:2] == nearest}, lowest


def is_bad(code: Code, request: Request) -> bool:
    """Tell whether a cubin is reported to compute wrong values."""
    return not code[1] and dotted(code[0][:2]) in request["known_bad"]


def choose(name: str, pairs: Iterable[Pair], request: Request) -> set[Code]:
    """Return the device code to compile, by archpatch's matching rules."""
    present = list(dict.fromkeys(map(stored, pairs)))
    have = {code for code in present if not is_bad(code, request)}
    taken: set[Code] = set()
    missing = []
    for gpu, text in request["gpus"] or [("", text) for text in request["archs"]]:
        arch = read_arch(text) or refuse(name, text)
        own = wanted(arch, gpu, have | taken, request["on_missing"])
        if request["on_missing"] == "add" and not own and not is_bad((arch, False), request):
            own = {(arch, False)}
        taken |= own
        missing += [] if own else [(f"{gpu} ({text})" if gpu else text, (arch, False))]
        if text in request["ptx"]:
            ptx = (arch, True)
            fits = (arch, False) in taken or (request["on_missing"] == "nearest" and ptx in have)
            taken |= {ptx} if fits else set()
            missing += [] if fits else [(text + "+PTX", ptx)]
    if not taken or (missing and (request["strict"] or request["gpus"])):
        complain(name, present, missing, request)
    return taken


def wanted(arch: Arch, gpu: str, have: set[Code], on_missing: str) -> set[Code]:
    """Return what there is for one arch, or for one GPU of that arch."""
    codes, how = best(have, (arch[0], arch[1], ""))
    exact = codes if how == 0 else set()
    if not gpu:
        exact = {(arch, False)} & have
    return exact or (codes if on_missing == "nearest" else set())


def complain(name: str, present: Sequence[Code], missing: Sequence[tuple[str, Code]], request: Request) -> NoReturn:
    """Stop: what was asked for is not there. Say what is, and what would take it."""
    asked = ", ".join(text for text, _ in missing) or request["text"]
    bad = [code for _, code in missing if is_bad(code, request)]
    there = [", ".join(map(spelled, present))]
    there += [f"{spelled(code)} is known bad: {request['known_bad'][dotted(code[0][:2])]}" for code in bad]
    said = ["Ask archpatch for one of these."]
    for base in dict.fromkeys(code[0][:2] for _, code in missing):
        codes, how = best([code for code in present if not is_bad(code, request)], (base[0], base[1], ""))
        near = ", ".join(map(spelled, sorted(codes))) + (" would be compiled just in time" if how > 1 else " would run")
        said += [f"{near} on a GPU of {dotted(base)}: take it with --on-missing nearest."] if codes else []
    add = ", ".join(dotted(code[0]) for _, code in missing if not code[1] and code not in bad)
    said += [f"--on-missing add compiles {add} all the same."] if add and request["on_missing"] != "add" else []
    said += ["--allow-known-bad takes it as it is."] if bad else []
    raise ArchpatchNoMatchingArch(
        f"archpatch: extension {name}: no matching arch for {asked}: it compiles {'; '.join(there)}. {' '.join(said)}"
    )


def kept_and_added(pairs: Sequence[Pair], taken: Iterable[Code]) -> list[Pair]:
    """Return the pairs that are taken, then those to add."""
    present = set(map(stored, pairs))
    taken = set(taken)
    return [pair for pair in pairs if stored(pair) in taken] + [(code[0], code) for code in sorted(taken - present)]


def flags(pairs: Iterable[Pair]) -> list[str]:
    """Spell pairs as arguments of nvcc."""
    return [f"-gencode=arch=compute_{number(compute)},code={spelled(code)}" for compute, code in pairs]


def filtered(name: str, words: Sequence[Any], request: Request, families: Families) -> tuple[list[Any], list[str]]:
    """Return nvcc's arguments with the selected arch flags, and these alone: none where there were none."""
    others, place, pairs = read_flags(name, words)
    if not pairs:
        return list(words), []
    if name in families:
        union, taken = families[name]
        own = set(map(stored, pairs))
        taken = {code for code in taken if code in own or (code not in union and (code[0], False) in own)}
    else:
        taken = choose(name, pairs, request)
    new = flags(kept_and_added(pairs, taken))
    return others[:place] + new + others[place:], new


def torch_adds(request: Request) -> list[str]:
    """Have torch add what was asked for to an extension without pairs; return what torch does not know how to add."""
    if request["torch_list"]:
        os.environ["TORCH_CUDA_ARCH_LIST"] = request["torch_list"]
        return []
    archs = [text for _, text in request["gpus"]] or request["archs"]
    codes = ["sm_" + text for text in archs] + ["compute_" + text for text in request["ptx"]]
    return flags((code[0], code) for code in map(read_code, codes) if code)


def has_cuda(extension: Any) -> bool:
    """Tell whether nvcc compiles something of an extension."""
    return any(str(source).endswith((".cu", ".cuh")) for source in extension.sources)


def nvcc_words(extension: Any) -> list[Any]:
    """Return the arguments of an extension that nvcc gets."""
    arguments = extension.extra_compile_args
    return list((arguments.get("nvcc") if isinstance(arguments, dict) else arguments) or ())


def is_done(extension: Any, words: Sequence[Any]) -> bool:
    """Tell whether the flags are those that the guard wrote before: what it added is no choice of the package's."""
    written = getattr(extension, "archpatch_flags", None)
    return bool(written) and written == flags(read_flags(extension.name, words)[2])


def filter_extension(extension: Any, request: Request, families: Families) -> None:
    """Give a CUDA extension its selected arch flags; what it shares with other extensions is copied first."""
    arguments, words = extension.extra_compile_args, nvcc_words(extension)
    if not has_cuda(extension) or is_done(extension, words):
        return
    words, new = filtered(extension.name, words, request, families)
    if not new:
        new = torch_adds(request)
        words += new
    extension.archpatch_flags = new
    if not isinstance(arguments, dict):
        extension.extra_compile_args = words
        return
    extension.extra_compile_args = dict(arguments, nvcc=words)
    if "nvcc_dlink" in arguments:
        linked, own = filtered(extension.name, arguments["nvcc_dlink"] or (), request, families)
        extension.extra_compile_args["nvcc_dlink"] = linked if own else linked + new


def keep_selected(extensions: list[Any], request: Request) -> Families:
    """Where there is one extension per arch, which its name tells, take out those whose arch is not selected."""
    groups: dict[str, dict[str, list[Pair]]] = {}
    for extension in filter(has_cuda, extensions):
        pairs = read_flags(extension.name, nvcc_words(extension))[2]
        archs = {number(stored(pair)[0][:2]) for pair in pairs}
        if len(archs) == 1:
            family = re.sub("(?<![0-9])" + archs.pop() + "[af]?(?![0-9a-z])", "*", extension.name, count=1)
            groups.setdefault(family, {})[extension.name] = pairs
    families: Families = {}
    for family, members in groups.items():
        if len(members) > 1:
            pairs = sum(members.values(), [])  # noqa: RUF017 - a handful of lists
            union, taken = set(map(stored, pairs)), choose(family, pairs, request)
            lost = [code for code in taken - union if (code[0], False) not in union]
            if lost:
                complain(family, sorted(union), [(dotted(code[0]), code) for code in lost], request)
            families.update(dict.fromkeys(members, (union, taken)))
            out = [name for name in members if not taken & set(map(stored, members[name]))]
            extensions[:] = [extension for extension in extensions if extension.name not in out]
    return families


def install(request: Request) -> None:
    """Put the guard at the last step before the compile, below every subclass of setuptools' build_ext."""
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415, I001 - archpatch itself runs without setuptools
    from distutils.command.build_ext import build_ext as plain  # noqa: PLC0415 - the one that setuptools builds on

    families: Families = {}
    for owner in (build_ext, plain):
        wrap(owner, build_ext, request, families)


def wrap(owner: Any, modern: Any, request: Request, families: Families) -> None:
    """Wrap the two methods of `owner`; distutils' own count only for a command that is not setuptools'."""
    build_all = getattr(owner.build_extensions, "unguarded", owner.build_extensions)
    build_one = getattr(owner.build_extension, "unguarded", owner.build_extension)

    def build_extensions(self: Any) -> None:
        if isinstance(self, modern) == (owner is modern):
            families.update(keep_selected(self.extensions, request))
        build_all(self)

    def build_extension(self: Any, ext: Any) -> None:
        if isinstance(self, modern) == (owner is modern):
            filter_extension(ext, request, families)
        build_one(self, ext)

    build_extensions.__dict__["unguarded"] = build_all
    build_extension.__dict__["unguarded"] = build_one
    owner.build_extensions, owner.build_extension = build_extensions, build_extension
