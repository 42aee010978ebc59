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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from archpatch.arch.gencode import parse_flags
from archpatch.builder.schedule.rota import UNKNOWN, Cost, File, Machine, Rota, Turn

__all__ = ["Desk", "Seat", "Split"]

#: ninja starts all files at once, and that takes less than this (seconds): the longest shall start, not the first.
_GATHERING: Final = 0.3
#: The last stand-ins have told their cost when a build ends, but it may not be read yet (seconds).
_READING: Final = 1.0
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
        if self.archs and at_once > 1 and not has_option(_THREADS, words):
            flags.append(f"--threads={at_once}")
        each = turn.threads // at_once
        if self.optimisers and each > 1 and not has_option(_SPLIT, words):
            flags.append(f"--split-compile={each}")
        return flags

    def without(self, words: Sequence[str]) -> Split:
        """Return what may be given beside `words`, which nvcc gets from elsewhere too."""
        return Split(
            archs=self.archs and not has_option(_THREADS, words),
            optimisers=self.optimisers and not has_option(_SPLIT, words),
        )


@dataclass(slots=True, kw_only=True)
class Seat:
    """The place of one build at the desk: `address` names its socket, `costs` is what its files took, by their path.

    `extensions` has the files of each extension; setuptools compiles one extension after the other. `deadlines` is when
    those of an extension that began to ask are taken to have asked. A build that `failed` compiles nothing more.
    """

    extensions: Mapping[int, Mapping[str, File]]
    split: Split
    address: str = field(default_factory=lambda: f"archpatch-{secrets.token_hex(16)}")
    costs: dict[str, Cost] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)
    talking: int = 0
    failed: bool = False
    closed: bool = False

    def file(self, path: str, words: Sequence[str]) -> File:
        """Return the file that nvcc is called for with `words`."""
        archs = len(parse_flags(words).pairs) or 1
        for number, files in self.extensions.items():
            if path in files and path not in self.costs:
                return File(extension=number, path=path, archs=archs, cost=files[path].cost)
        return File(extension=next(iter(self.extensions)), path=path, archs=archs)


class Desk:
    """The one place where it is decided what compiles next on this machine."""

    def __init__(self, machine: Machine) -> None:
        self._rota = Rota(machine)
        self._changed = threading.Condition()
        self._extensions = itertools.count()

    @contextmanager
    def seat(self, extensions: Sequence[Mapping[str, Cost]], *, archs: int, split: Split) -> Iterator[Seat]:
        """Let a build ask for turns: for the files of each extension, by what they cost, for `archs` architectures.

        Raises `OSError` where no socket can be had.
        """
        numbered = {next(self._extensions): files for files in extensions}
        seat = Seat(
            extensions={
                number: {
                    path: File(extension=number, path=path, cost=cost, archs=archs) for path, cost in files.items()
                }
                for number, files in numbered.items()
            },
            split=split,
        )
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
                self._changed.notify_all()
                self._changed.wait_for(lambda: not seat.talking, timeout=_READING)
                for number in seat.extensions:
                    self._rota.withdraw(number)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the whole machine, for a build whose compilers do not ask."""
        file = File(extension=next(self._extensions), path="", alone=True, cost=UNKNOWN)
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
        """Wait for the turn of a file, and hold it; None where its build has failed or ended."""
        turn = None
        with self._changed:
            self._gather(file, seat)
            self._rota.ask(file)
            self._changed.notify_all()
        try:
            with self._changed:
                self._wait_for_others(file, seat)
                while turn is None and not (seat.closed or seat.failed):
                    turn = self._rota.start(file)
                    if turn is None:
                        self._changed.wait()
                # One that has started is no longer first in the queue.
                self._changed.notify_all()
            yield turn
        finally:
            self._leave(file)

    def fail(self, seat: Seat) -> None:
        """Take note that a file of a build did not compile: those that wait need not any more."""
        with self._changed:
            seat.failed = True
            self._changed.notify_all()

    @contextmanager
    def talking(self, seat: Seat) -> Iterator[None]:
        """Count a stand-in as long as it may have something to tell."""
        with self._changed:
            seat.talking += 1
        try:
            yield
        finally:
            with self._changed:
                seat.talking -= 1
                self._changed.notify_all()

    def _gather(self, file: File, seat: Seat) -> None:
        """Take note of all files of an extension when the first of them asks: ninja has started the others too."""
        if file.extension not in seat.deadlines:
            seat.deadlines[file.extension] = time.monotonic() + _GATHERING
            self._rota.announce(seat.extensions[file.extension].values())

    def _wait_for_others(self, file: File, seat: Seat) -> None:
        self._changed.wait_for(
            lambda: seat.closed or self._rota.all_asked(file.extension),
            timeout=max(0.0, seat.deadlines[file.extension] - time.monotonic()),
        )
        self._rota.withdraw(file.extension)

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
        if _is_ours(self.connection):
            with self.server.desk.talking(self.server.seat):
                self._answer()

    def _answer(self) -> None:
        desk, seat = self.server.desk, self.server.seat
        asked = json.loads(self.rfile.readline())
        file = seat.file(asked["source"], asked["words"])
        with desk.turn(file, seat) as turn:
            if turn is None:
                self._say({"stop": True})
                return
            self._say({"stop": False, "flags": seat.split.flags(asked["words"], turn, file.archs), "nice": turn.nice})
            told = self.rfile.readline()
            if not told:
                return
            done = json.loads(told)
            if done["status"]:
                desk.fail(seat)
            else:
                seat.costs[file.path] = Cost(seconds=done["seconds"] / file.archs, memory=done["memory"])

    def _say(self, message: Mapping[str, object]) -> None:
        self.wfile.write(json.dumps(message).encode() + b"\n")


def _is_ours(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end: any user's could be, an abstract address is no secret."""
    form = "3i"
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    return bool(struct.unpack(form, credentials)[1] == os.getuid())


def has_option(options: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of nvcc's `options` is among `words`, with its value or before it."""
    return any(word.partition("=")[0] in options for word in words)
