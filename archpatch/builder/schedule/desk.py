"""Where the stand-ins of nvcc ask for their turn: one rota for all builds of a command, one socket for each build."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from archpatch.arch.gencode import parse_flags
from archpatch.builder.schedule.rota import Cost, File, Machine, Rota, Turn

__all__ = ["Desk", "Seat", "Split"]

#: ninja starts all files at once, and that takes less than this (seconds): the longest shall start, not the first.
_GATHERING: Final = 0.3
_SPLIT = ("-split-compile", "--split-compile")
_THREADS = ("-t", "-threads", "--threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which of nvcc's options may be given: several archs side by side, and one arch's optimisers in threads."""

    archs: bool = True
    optimisers: bool = True

    def flags(self, words: Sequence[str], turn: Turn, archs: int) -> list[str]:
        """Return what to add to `words`, so that nvcc takes the threads that it got; what is set there stays."""
        flags = []
        at_once = min(turn.threads, archs)
        if self.archs and at_once > 1 and not _has(_THREADS, words):
            flags.append(f"--threads={at_once}")
        each = turn.threads // at_once
        if self.optimisers and each > 1 and not _has(_SPLIT, words):
            flags.append(f"--split-compile={each}")
        return flags


@dataclass(slots=True, kw_only=True)
class Seat:
    """The place of one build at the desk: `address` names its socket, `costs` is what its files took, by their path."""

    build: int
    files: Mapping[str, File]
    split: Split
    address: str = field(default_factory=lambda: f"archpatch-{secrets.token_hex(16)}")
    costs: dict[str, Cost] = field(default_factory=dict)
    closed: bool = False

    def file(self, path: str, words: Sequence[str]) -> File:
        """Return the file that nvcc is called for with `words`."""
        known = self.files.get(path)
        archs = len(parse_flags(words).pairs) or 1
        if known is None:
            return File(build=self.build, path=path, archs=archs)
        return File(build=self.build, path=path, archs=archs, cost=known.cost)


class Desk:
    """The one place where it is decided what compiles next on this machine."""

    def __init__(self, machine: Machine) -> None:
        self._rota = Rota(machine)
        self._changed = threading.Condition()
        self._builds = itertools.count()

    @contextmanager
    def seat(self, costs: Mapping[str, Cost], *, archs: int, split: Split) -> Iterator[Seat]:
        """Let a build ask for turns. It will compile the files that `costs` names, each for `archs` architectures."""
        build = next(self._builds)
        files = {path: File(build=build, path=path, cost=cost, archs=archs) for path, cost in costs.items()}
        seat = Seat(build=build, files=files, split=split)
        with self._changed:
            self._rota.announce(files.values())
        server = _Server(self, seat)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield seat
        finally:
            server.shutdown()
            server.server_close()
            with self._changed:
                seat.closed = True
                self._rota.withdraw(build)
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the whole machine, for a build whose compilers do not ask."""
        file = File(build=next(self._builds), path="", alone=True)
        with self._changed:
            self._rota.ask(file)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._rota.start(file) is not None)
            yield
        finally:
            self._leave(file)

    @contextmanager
    def turn(self, file: File, seat: Seat) -> Iterator[Turn | None]:
        """Wait for the turn of a file, and hold it; None where its build has ended."""
        turn = None
        with self._changed:
            self._rota.ask(file)
            self._changed.notify_all()
        try:
            with self._changed:
                self._changed.wait_for(lambda: seat.closed or self._rota.all_asked(seat.build), timeout=_GATHERING)
                while turn is None and not seat.closed:
                    turn = self._rota.start(file)
                    if turn is None:
                        self._changed.wait()
                # One that was started may have made room for the next one to be seen as first.
                self._changed.notify_all()
            yield turn
        finally:
            self._leave(file)

    def _leave(self, file: File) -> None:
        with self._changed:
            self._rota.leave(file)
            self._changed.notify_all()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens at the address of a seat: in Linux's abstract namespace, where paths are not too long for a socket."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, desk: Desk, seat: Seat) -> None:
        self.desk, self.seat = desk, seat
        super().__init__("\0" + seat.address, _Conversation)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who was killed needs no answer."""


class _Conversation(socketserver.StreamRequestHandler):
    """What a stand-in asks, the answer, and what it tells in the end; see `nvcc_stand_in`."""

    server: _Server

    def handle(self) -> None:
        if not _is_ours(self.connection):
            return
        asked = json.loads(self.rfile.readline())
        desk, seat = self.server.desk, self.server.seat
        file = seat.file(asked["source"], asked["words"])
        with desk.turn(file, seat) as turn:
            if turn is None:
                return
            flags = seat.split.flags(asked["words"], turn, file.archs)
            self.wfile.write(json.dumps({"flags": flags, "nice": turn.nice}).encode() + b"\n")
            told = self.rfile.readline()
            if told:
                seat.costs[file.path] = Cost.read(json.loads(told))


def _is_ours(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end: any user's could be, an abstract address is no secret."""
    form = "3i"
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    return bool(struct.unpack(form, credentials)[1] == os.getuid())


def _has(options: Sequence[str], words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in options for word in words)
