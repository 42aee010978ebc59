"""Mutated archives of kernels: refused, or restored right, and nothing written outside the root.

The command: `python tests/fuzz/archives.py [--inputs N] [--seed S]`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import zstandard

_HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:] = [str(_HERE.parent), str(_HERE.parent / "support"), *sys.path[1:]]

from kernels import LANE, LIMIT, elf, folder, inductor_graph, key, listing, triton_kernel, write  # noqa: E402

from archpatch.kernel_cache.contents import Contents  # noqa: E402
from archpatch.kernel_cache.ninja import read_build  # noqa: E402
from archpatch.kernel_cache.restore import Restored, restore  # noqa: E402
from archpatch.kernel_cache.save import save  # noqa: E402
from archpatch.kernel_cache.store import Store  # noqa: E402

__all__ = ["KINDS", "Bench", "judge"]

Member = tuple[tarfile.TarInfo, bytes]
_MANIFEST: Final = "manifest.json"
_NAMES: Final = (
    *("../evil", "/evil", "triton/../../evil", "triton/K/../../../../evil", "a", "triton", "", ".", "..", "triton//x"),
    *("triton/A/add.ptx/below", "triton/A/add.ptx", "triton/A/./add.ptx", "\0", "triton/A/\udcff", "x" * 300),
    *(".archpatch/x", "../r.json", "triton/" + "d/" * 200 + "x", "inductor/lock", "unknown/x"),
)
_LINKS: Final = ("..", "/", "/etc/passwd", "../../canary", "add.ptx", "", "../A", "triton/A/add.ptx", "x" * 5000)
_KINDS: Final = (
    *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE),
    *(tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Z"),
)
_VALUES: Final = (
    *(None, [], {}, "", 0, -1, 10**30, "../x", ["a", "b"], {"a": {"b": []}}, 1e308),
    *(True, "\0", "é" * 50, float("inf"), {"a": float("inf")}),
)


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _splice(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    place = rng.randrange(len(data))
    return data[:place] + data[start:end] + data[place + rng.choice((0, end - start)) :]


def _append(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\0" * 1024, data[:200], b"x", zstandard.compress(bytes(2048)), rng.randbytes(50)))


_ON_BYTES: Final = {"flipped": _flip, "cut off": _cut, "spliced": _splice, "appended": _append}


def _add_member(members: list[Member], rng: random.Random) -> None:
    info = tarfile.TarInfo(rng.choice(_NAMES))
    content = rng.choice((b"", b"x", b"{}", elf()))
    info.size = len(content)
    members.insert(rng.randint(0, len(members)), (info, content))


def _odd_member(members: list[Member], rng: random.Random) -> None:
    info = tarfile.TarInfo(rng.choice((*_NAMES, members[0][0].name)))
    info.type, info.linkname = rng.choice(_KINDS), rng.choice(_LINKS)
    info.mode, info.uid = rng.choice((0, 0o777, 0o7777)), rng.choice((0, 2**31))
    members.insert(rng.randint(0, len(members)), (info, b""))


def _rename_member(members: list[Member], rng: random.Random) -> None:
    info, _ = rng.choice(members)
    info.name = rng.choice(_NAMES)


def _drop_member(members: list[Member], rng: random.Random) -> None:
    members.pop(rng.randrange(len(members)))


def _double_member(members: list[Member], rng: random.Random) -> None:
    members.insert(rng.randint(0, len(members)), rng.choice(members))


def _change_member(members: list[Member], rng: random.Random) -> None:
    place = rng.randrange(len(members))
    info, content = members[place]
    changed = rng.choice((_flip, _cut, _splice))(content or b"x", rng)
    info.size = len(changed)
    members[place] = (info, changed)


def _bomb(members: list[Member], _: random.Random) -> None:
    info = tarfile.TarInfo("triton/bomb")
    info.size = LIMIT + 1
    members.append((info, bytes(info.size)))


def _huge_size(members: list[Member], rng: random.Random) -> None:
    info, _ = rng.choice(members)
    info.size = rng.choice((2**33 - 1, 10**6, 513))


_ON_MEMBERS: Final = {
    "member added": _add_member,
    "member of an odd kind": _odd_member,
    "member renamed": _rename_member,
    "member dropped": _drop_member,
    "member doubled": _double_member,
    "member changed": _change_member,
    "a size that is a lie": _huge_size,
}


def _change_manifest(data: dict[str, Any], rng: random.Random) -> None:
    place: Any = data
    while isinstance(place, dict) and place:
        name = rng.choice(list(place))
        if not isinstance(place[name], dict) or rng.random() < 0.5:
            place[name] = rng.choice(_VALUES)
            return
        place = place[name]


def _change_lane(data: dict[str, Any], rng: random.Random) -> None:
    field = rng.choice(list(data["lane"]))
    data["lane"][field] = rng.choice(("sm121", "h100", "3.9.0", "none", ""))


def _change_count(data: dict[str, Any], rng: random.Random) -> None:
    data["idle"] = {"triton/A": rng.choice((float("inf"), float("nan"), 1e308, -1, "9" * 5000, [1]))}


_ON_MANIFEST: Final = {
    "manifest changed": _change_manifest,
    "lane changed": _change_lane,
    "a count that is none": _change_count,
}


def _hostile_group(files: dict[str, bytes], rng: random.Random) -> None:
    name = rng.choice([name for name in files if "__grp__" in name])
    paths: Any = {rng.choice(_NAMES): rng.choice(_NAMES) for _ in range(3)}
    data = rng.choice(({"child_paths": paths}, {"child_paths": rng.choice(_VALUES)}, rng.choice(_VALUES)))
    files[name] = json.dumps(data).encode()


def _hostile_name(files: dict[str, bytes], rng: random.Random) -> None:
    files[rng.choice((*_NAMES, "triton/A/__grp__x\n::y.json"))] = rng.choice((b"", b"{", elf()))


_OUTPUTS: Final = (
    *("../../../../../../../canary", "/etc/hostname", "mine.o", "/dev/zero", "/proc/kmsg", "/", "", "x\n::y"),
)
#: Pieces of build files, some of which lead somewhere, grow, or go in circles.
_STATEMENTS: Final = (
    *("rule cc\n command = c++ -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc\n", "build", "rule cc\n"),
    *("build mine.o: cc main.cpp\n", "build mine.o: cc / | /dev/zero || $x\n", " deps = $deps\n", "x = $x$x$x\n", "$"),
    *("include ../../../../canary\n", "build mine.o: phony\n", "rule cc\n command = cat /etc/passwd\n", "\0", ":\n"),
    *("rule cc\n command = c++ -MMD -I/ -I/proc -c $in -o $out @/dev/zero\n depfile = x\n deps = gcc\n", "a = $b$b\n"),
)


def _hostile_build(files: dict[str, bytes], rng: random.Random) -> None:
    def mostly(honest: Any, *others: Any) -> Any:  # noqa: ANN401 - of any type
        return honest if rng.random() < 0.9 else rng.choice(others)

    output = mostly("mine.o", *_OUTPUTS)
    log = f"# ninja log v7\n0\t1\t{mostly('0', '1' * 30, '-1', 'x')}\t{output}\tabc\n"
    files["extensions/mine/.ninja_log"] = log.encode()
    deps = b"# ninjadeps\n\4\0\0\0" + _path_record(output) + _path_record(mostly("/etc/hostname", *_OUTPUTS))
    length = rng.choice((16, 16, mostly(4, 0, 3, 8, 11, 12, 2**31 - 1)))
    words = mostly(bytes(4), rng.randbytes(4)) + rng.randbytes(8) + mostly(b"\1\0\0\0", rng.randbytes(4))
    deps += (length | 1 << 31).to_bytes(4, "little") + words[:length]
    files["extensions/mine/.ninja_deps"] = mostly(deps, _flip(deps, rng), _cut(deps, rng))
    build = mostly(
        _STATEMENTS[0] + _STATEMENTS[3], "", *("".join(rng.choices(_STATEMENTS, k=count)) for count in (3, 60))
    )
    files["extensions/mine/build.ninja"] = mostly(build.encode(), _flip(build.encode() or b"x", rng))
    files["extensions/mine/mine.o"], files["extensions/mine/main.cpp"] = elf(), b"source"


def _digest(files: dict[str, bytes], place: Path) -> str:
    """Return what a restore will find that the folder was built from, or no digest."""
    with tempfile.TemporaryDirectory() as work:
        for name in (name for name in files if name.startswith("extensions/mine/")):
            write(Path(work, Path(name).name), files[name])
        build = read_build(Path(work), place)
        content = build and build.content(Contents(root=place, staged={place: Path(work)}))
    return content.digest if content else "0" * 64


def _path_record(path: str) -> bytes:
    data = path.encode().ljust((len(path) + 3) // 4 * 4, b"\0") + b"\xff\xff\xff\xff"
    return len(data).to_bytes(4, "little") + data


def _hostile_timings(files: dict[str, bytes], rng: random.Random) -> None:
    files["inductor/cache/system"] = json.dumps(rng.choice(_VALUES)).encode()


#: What somebody does who can also write a manifest that fits.
_CONSISTENT: Final = {
    "group forged": _hostile_group,
    "name forged": _hostile_name,
    "ninja's logs forged": _hostile_build,
    "timings forged": _hostile_timings,
}

KINDS: Final = (*_ON_BYTES, *(f"tar {kind}" for kind in _ON_BYTES), *_ON_MEMBERS, *_ON_MANIFEST, *_CONSISTENT, "bomb")


@dataclass(slots=True)
class Bench:
    """An honest archive and a box with a canary, in which each mutated one is restored."""

    box: Path
    honest: bytes
    content: dict[str, bytes]

    @classmethod
    def build(cls, work: Path) -> Bench:
        """Save a small root, and note what a restore of it gives."""
        source, box = work / "source", work / "box"
        triton_kernel(source, "add", digest="A")
        triton_kernel(source, "mul", digest="M")
        inductor_graph(source)
        write(folder(source, "deep-gemm") / "cache" / "k" / "kernel.cubin", elf())
        saved = save(Store(work / "store"), source, lane=LANE, key=key(), limit=LIMIT)
        assert saved.archive is not None
        write(box / "canary", b"alive")
        bench = cls(box=box, honest=saved.archive.read_bytes(), content={})
        restored = bench.restore(bench.honest)
        assert restored.refused == ()
        bench.content = listing(box / "root")
        shutil.rmtree(box / "root")
        return bench

    def restore(self, archive: bytes) -> Restored:
        """Restore the bytes of an archive into the box's root."""
        path = write(self.box / "store" / "x.tar.zst", archive)
        return restore(Store(path), self.box / "root", lane=LANE, key=key(), limit=LIMIT)

    def mutated(self, rng: random.Random, kind: str) -> bytes:
        """Return an archive with one mutation."""
        if kind in _ON_BYTES:
            return _ON_BYTES[kind](self.honest, rng)
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(self.honest)
        if kind.removeprefix("tar ") in _ON_BYTES:
            return zstandard.compress(_ON_BYTES[kind.removeprefix("tar ")](plain, rng), 1)
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            members = [(info, _read(tar, info)) for info in tar]
        if kind == "bomb":
            _bomb(members, rng)
        elif kind in _ON_MEMBERS:
            _ON_MEMBERS[kind](members, rng)
        elif kind in _ON_MANIFEST:
            info, content = members.pop()
            data = json.loads(content)
            _ON_MANIFEST[kind](data, rng)
            members.append(_member(info.name, json.dumps(data).encode()))
        else:
            members = list(self._forged(members, rng, _CONSISTENT[kind]))
        return zstandard.compress(_tar(members), 1)

    def _forged(
        self, members: list[Member], rng: random.Random, change: Callable[[dict[str, bytes], random.Random], None]
    ) -> Iterator[Member]:
        """Yield the members after a change of which the manifest knows."""
        files = {info.name: content for info, content in members if info.name != _MANIFEST}
        manifest = json.loads(members[-1][1])
        change(files, rng)
        manifest["files"] = {name: sha256(content).hexdigest() for name, content in files.items()}
        place = folder(self.box / "root", "extensions") / "mine"
        told = [rng.choice((str(place), str(place), "/x\n::y")), _digest(files, place)]
        manifest["builds"] = {"extensions/mine": told}
        yield from (_member(name, content) for name, content in files.items())
        yield _member(_MANIFEST, json.dumps(manifest).encode())


def judge(bench: Bench, seed: int, number: int) -> tuple[str, str, list[str]]:
    """Restore the archive `number` of a run; return its kind, what became of it, and what is wrong with that."""
    rng = random.Random(f"{seed}:{number}")  # noqa: S311 - inputs have to be the same again, not secret
    kind = rng.choices(KINDS, [0 if kind == "bomb" else 1 for kind in KINDS])[0] if rng.random() < 0.999 else "bomb"
    root = bench.box / "root"
    started = time.process_time()
    try:
        restored = bench.restore(bench.mutated(rng, kind))
    except BaseException as error:  # noqa: BLE001 - nothing may escape
        return kind, "", [f"{type(error).__name__}: {error}"]
    wrong = [f"took {time.process_time() - started:.1f} s"] if time.process_time() - started > 5 else []
    outcome = "refused" if restored.key is None else "restored"
    wrong += _outside(bench.box) + _inside(bench, root, kind)
    shutil.rmtree(root)
    return kind, outcome, wrong


def _outside(box: Path) -> list[str]:
    names = {str(path.relative_to(box)) for path in box.rglob("*") if "root" not in path.relative_to(box).parts[:1]}
    wrong = [] if names == {"canary", "store", "store/x.tar.zst"} else [f"outside there is {sorted(names)}"]
    return wrong if (box / "canary").read_bytes() == b"alive" else [*wrong, "the canary was written to"]


def _inside(bench: Bench, root: Path, kind: str) -> list[str]:
    wrong = []
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or mode & 0o7022:
            wrong.append(f"{path} has the mode {mode:o}")
    left = [path.name for path in (root / ".archpatch").iterdir() if path.suffix != ".json"]
    wrong += [f"left behind: {left}"] if left else []
    if kind not in _CONSISTENT:
        found = listing(root)
        wrong += [f"{name} is not what was saved" for name in found if found[name] != bench.content.get(name)]
    return wrong


def _read(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    assert file is not None
    return file.read()


def _member(name: str, content: bytes) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def _tar(members: list[Member]) -> bytes:
    """Return a tar with the members as they are: sizes may lie."""
    data = io.BytesIO()
    for info, content in members:
        data.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        data.write(content + bytes(-len(content) % 512))
    data.write(bytes(1024))
    return data.getvalue()


def main() -> int:
    """Run; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Restore mutated archives of kernels and look at what comes out.")
    parser.add_argument("--inputs", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="that of an earlier run, to have it again (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="the first input's number")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    sys.stdout.write(f"seed {seed}, {arguments.inputs} archives\n")
    counts: Counter[tuple[str, str]] = Counter()
    failed = 0
    started = time.monotonic()
    os.umask(0o022)
    # Each restore waits for the disk.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="archpatch-fuzz-", dir=memory) as work:
        bench = Bench.build(Path(work))
        for number in range(arguments.first, arguments.first + arguments.inputs):
            kind, outcome, wrong = judge(bench, seed, number)
            counts[kind, outcome] += 1
            for text in wrong:
                failed += 1
                sys.stdout.write(f"FAILED {number} ({kind}): {text}\n")
    for kind in KINDS:
        sys.stdout.write(f"{kind:24}{counts[kind, 'refused']:9} refused{counts[kind, 'restored']:9} restored\n")
    sys.stdout.write(f"{failed} failed; {time.monotonic() - started:.0f} s\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
