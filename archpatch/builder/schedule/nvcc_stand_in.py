"""Stand in for nvcc in a build: wait for this file's turn, run nvcc with the flags that it got, and tell the cost.

The interpreter that holds torch runs this file for each source; it imports nothing of archpatch. `ARCHPATCH_DESK` names
the socket of `desk.py`, and `ARCHPATCH_NVCC` is the real nvcc. A line of JSON goes there, `{source, words}`, one comes
back, `{stop, flags, nice}`, and at the end `{status, seconds, memory}` goes there. Where there is nothing to ask (a
question, a link) or nobody (the desk is gone), nvcc runs as it was called. It stops where another file has failed:
ninja waits for all that it started before it ends, and it starts all files at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import IO, Any

#: The first word where the flags are to go by which nvcc keeps source lines, or has ptxas talk.
NO_LINEINFO = "--archpatch-no-lineinfo"

_LINEINFO = ("-lineinfo", "--generate-line-info", "-res-usage", "--resource-usage")
_PTXAS = ("-Xptxas", "--ptxas-options")
_TALK = ("-v", "--verbose", "-warn-spills", "-warn-lmem-usage")
_COMPILES = ("-c", "--compile", "-dc", "--device-c")
_SOURCES = (".cu", ".c", ".cc", ".cpp", ".cxx")


def main(words: list[str]) -> int:
    """Run nvcc with `words`, and return its status."""
    if words[:1] == [NO_LINEINFO]:
        words = list(without_lineinfo(words[1:]))
    command = [os.environ["ARCHPATCH_NVCC"], *words]
    sources = [word for word in words if word.endswith(_SOURCES) and not word.startswith("-")]
    if len(sources) != 1 or not any(word in _COMPILES for word in words):
        return _run(command)[0]
    try:
        desk = socket.socket(socket.AF_UNIX)
        desk.connect("\0" + os.environ["ARCHPATCH_DESK"])
        stream = desk.makefile("rw", encoding="utf-8")
        _tell(stream, {"source": os.path.abspath(sources[0]), "words": words})  # noqa: PTH100 - links stay
        turn = json.loads(stream.readline())
    except (OSError, ValueError, LookupError):
        return _run(command)[0]
    if turn["stop"]:
        return 1
    os.nice(turn["nice"])
    status, cost = _run([*command, *turn["flags"]])
    with contextlib.suppress(OSError):
        _tell(stream, {"status": status, **cost})
    return status


def without_lineinfo(words: list[str]) -> Iterator[str]:
    """Yield the words of nvcc but for those that store or tell about its work; an option of ptxas goes by itself."""
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _PTXAS:
            value = value if equals else next(rest, "")
            kept = [each for each in value.split(",") if each and each not in _TALK]
            if kept:
                yield f"{option}={','.join(kept)}"
        elif word not in _LINEINFO:
            yield word


def _run(command: list[str]) -> tuple[int, dict[str, Any]]:
    process = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status)
    cost = {"seconds": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss << 10}
    # A signal is told as a shell does.
    return code if code >= 0 else 128 - code, cost


def _tell(stream: IO[str], message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
