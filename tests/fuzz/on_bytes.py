"""Mutations of bytes: damage, and what stands around a program (line ends, marks, encodings, white space)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["DAMAGE", "DRESS", "BytesMutation"]

BytesMutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
"""From a source, and other sources to take from, to another one."""

#: What is worth putting anywhere: what the rewrite, Python or a line end goes by.
_TOKENS: Final = (
    *(b"\0", b"\r", b"\n", b"\r\n", b"\x0c", b"\t", b" ", b"\\\n", b"\\", b"#", b'"', b"'", b'"""', b"'''"),
    *(b"(", b")", b"[", b"]", b"{", b"}", b",", b";", b":", b"*", b"=", b"+", b"f", b"b", b"r", b"-"),
    *(b"-gencode", b"arch=", b"code=", b"sm_90", b"compute_90", b"-arch=sm_80", b'"-gencode",', b".append("),
    *(b"pass\n", b"if x:\n", b"else:\n", b"lambda: ", b"\xef\xbb\xbf", b"\xe9", b"\xff", b"\xef\xbf\xbc", b"\x1a"),
    *(b"# archpatch guard begin", b"# archpatch guard end\n", b"# coding: latin-1\n", b"-std=c++17", b"nvcc "),
)
_INDENT = re.compile(rb"^(?: {4})+", re.MULTILINE)
_LINE_END = re.compile(rb"\r\n|\r|\n")
_ACCENTED: Final = b"\nauthor = '\xe9\xfc\xa7'  # \xe4\n"


def _flip(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    data = bytearray(source or b"x")
    for _number in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _insert(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    for _number in range(rng.randint(1, 3)):
        place = rng.randint(0, len(source))
        source = source[:place] + rng.choice(_TOKENS) + source[place:]
    return source


def _delete(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    place = rng.randint(0, len(source))
    return source[:place] + source[place + rng.choice((1, 1, 2, 5, 20, 100)) :]


def _repeat(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    place = rng.randint(0, len(source))
    return source[: place + rng.choice((1, 5, 20, 100))] + source[place:]


def _splice(source: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return source[: rng.randint(0, len(source))] + other[rng.randint(0, len(other)) :]


def _splice_lines(source: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    mine, theirs = source.splitlines(keepends=True), rng.choice(others).splitlines(keepends=True)
    start = rng.randint(0, len(theirs))
    place = rng.randint(0, len(mine))
    return b"".join((*mine[:place], *theirs[start : start + rng.randint(1, 8)], *mine[place:]))


def _truncate(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return source[: rng.randint(0, len(source))]


def _drop_line(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = source.splitlines(keepends=True)
    for _number in range(rng.randint(1, 3)):
        if lines:
            del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def _double_line(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = source.splitlines(keepends=True) or [b"\n"]
    place = rng.randrange(len(lines))
    return b"".join((*lines[: place + 1], *lines[place:]))


def _swap_lines(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = source.splitlines(keepends=True) or [b"\n"]
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _crlf(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return _LINE_END.sub(b"\r\n", source)


def _cr(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return _LINE_END.sub(b"\r", source)


def _mixed_line_ends(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return _LINE_END.sub(lambda _match: rng.choice((b"\n", b"\r\n", b"\r")), source)


def _byte_order_mark(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return b"\xef\xbb\xbf" + source


def _coding_line(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    name = rng.choice((b"utf-8", b"latin-1", b"cp1252", b"ascii", b"utf-16", b"shift_jis", b"koi8-r", b"klingon"))
    return b"# -*- coding: " + name + b" -*-\n" + source


def _latin_1(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = source.splitlines(keepends=True)
    place = rng.choice((0, len(lines)))
    return b"".join((b"#!/usr/bin/python\n# coding=latin-1", _ACCENTED, *lines[:place], _ACCENTED, *lines[place:]))


def _utf_8(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return source + "größe = 'é 漢 😀'  # ü\n".encode()


def _tabs(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return _INDENT.sub(lambda match: b"\t" * (len(match[0]) // 4), source)


def _form_feeds(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    where = rng.choice((b"\n\x0c\n", b"\n\x0c", b" \x0c\n"))
    return _LINE_END.sub(lambda match: where if rng.random() < 0.1 else match[0], source)


def _no_final_line_end(source: bytes, _: random.Random, __: Sequence[bytes]) -> bytes:
    return source.rstrip(b"\r\n")


def _white_at_line_ends(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return _LINE_END.sub(lambda match: rng.choice((b"", b"", b" ", b"\t", b"  ")) + match[0], source)


def _white_at_the_end(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return source + rng.choice((b"\n\n\n", b"   ", b"\t\n  ", b"# end", b"    # end\n", b"\\\n", b"\x0c", b"\x1a"))


def _blank_lines(source: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return _LINE_END.sub(lambda match: match[0] * rng.choice((1, 1, 1, 2, 3)), source)


#: What may leave no program behind.
DAMAGE: Final[dict[str, BytesMutation]] = {
    "bits flipped": _flip,
    "bytes inserted": _insert,
    "bytes deleted": _delete,
    "bytes repeated": _repeat,
    "two files spliced": _splice,
    "lines spliced in": _splice_lines,
    "truncated": _truncate,
    "lines dropped": _drop_line,
    "line doubled": _double_line,
    "lines swapped": _swap_lines,
}

#: What leaves a program the same, or nearly so.
DRESS: Final[dict[str, BytesMutation]] = {
    "CRLF": _crlf,
    "CR": _cr,
    "mixed line ends": _mixed_line_ends,
    "byte order mark": _byte_order_mark,
    "coding line": _coding_line,
    "latin-1": _latin_1,
    "utf-8": _utf_8,
    "tabs": _tabs,
    "form feeds": _form_feeds,
    "no final line end": _no_final_line_end,
    "white at line ends": _white_at_line_ends,
    "white at the end": _white_at_the_end,
    "blank lines": _blank_lines,
}
