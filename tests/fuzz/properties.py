"""What has to hold for every input: each property yields what is wrong, in words, and nothing where all is well."""

from __future__ import annotations

import io
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from archpatch.rewrite.guard import GUARD_BEGIN, GUARD_END, strip_guard
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source
from fuzz.mutations import Input
from fuzz.programs import LINE_END, Program, read_program

__all__ = ["PROPERTIES", "Property", "Trial", "is_python"]

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Trial:
    """An input and what became of it; `base` and `result` are the two sources without guards."""

    given: Input
    outcome: Outcome
    base: bytes = field(init=False)
    result: bytes = field(init=False)

    def __post_init__(self) -> None:
        leaves_guards = self.given.request is None
        self.base = self.given.source if leaves_guards else strip_guard(self.given.source).source
        self.result = self.outcome.source if leaves_guards else strip_guard(self.outcome.source).source

    @property
    def programs(self) -> tuple[Program, Program] | None:
        """`base` and `result` as programs; None where nothing was edited, or `base` is none."""
        if self.base == self.result or not is_python(self.base):
            return None
        return read_program(self.base), read_program(self.result)

    @property
    def changes_flags(self) -> bool:
        """Whether flags in the text may have changed."""
        return isinstance(self.outcome, Rewritten) and not self.outcome.guarded and self.given.request is not None


Property = Callable[[Trial], Iterator[str]]


def is_python(source: bytes) -> bool:
    """Whether Python compiles `source`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "setup.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def kind_fits_bytes(trial: Trial) -> Iterator[str]:
    """A refusal and no change leave the bytes, a rewrite changes them."""
    is_same = trial.outcome.source == trial.given.source
    if isinstance(trial.outcome, Rewritten) is is_same:
        yield f"{trial.outcome.outcome}, and the bytes are {'the same' if is_same else 'others'}"
    if isinstance(trial.outcome, Refused) and not trial.outcome.refusals and trial.outcome.no_match is None:
        yield "refused for no reason"


def result_is_python(trial: Trial) -> Iterator[str]:
    """The result is a program wherever the input was."""
    if trial.outcome.source != trial.given.source and is_python(trial.given.source):
        for name, source in (("result", trial.outcome.source), ("result without its guard", trial.result)):
            if not is_python(source):
                yield f"the {name} is not Python"


def second_run_changes_nothing(trial: Trial) -> Iterator[str]:
    """Run on its own result, the rewrite gives the same bytes, and says that it changed nothing."""
    given, first = trial.given, trial.outcome
    second = rewrite_source(first.source, given.request, policy=given.policy, cxx_standard=given.cxx_standard)
    if second.source != first.source:
        yield f"the second run gives other bytes ({first.outcome}, then {second.outcome})"
    if second.outcome != ("refused" if isinstance(first, Refused) else "unchanged"):
        yield f"{first.outcome}, then {second.outcome}"


def lines_are_there(trial: Trial) -> Iterator[str]:
    """Each line that is reported is one of the file."""
    outcome, last = trial.outcome, len(re.findall(rb"\r\n|\r|\n", trial.given.source)) + 1
    found = [report.line for report in outcome.pairs]
    found += [refusal.line for refusal in outcome.refusals] if isinstance(outcome, Refused) else []
    found += [source.line for source in outcome.sources] if isinstance(outcome, Rewritten | Unchanged) else []
    yield from (f"line {line} is reported, of {last}" for line in found if not 1 <= line <= last)


def guard_comes_off(trial: Trial) -> Iterator[str]:
    """Without its guard, a guarded file is what was given: byte for byte, save for C++ standards."""
    outcome = trial.outcome
    if isinstance(outcome, Refused) or not outcome.guarded:
        return
    if trial.given.cxx_standard is None and trial.result != trial.base:
        yield "without the guard, the bytes are others"
    encoding = tokenize.detect_encoding(io.BytesIO(outcome.source).readline)[0]
    lines = LINE_END.split(outcome.source.decode(encoding))
    if GUARD_BEGIN not in lines or GUARD_END not in lines:
        yield "guarded, and there is no guard"


def pairs_are_whole(trial: Trial) -> Iterator[str]:
    """No option loses its value, no value its option."""
    programs = trial.programs
    if programs is None:
        return
    before, after = programs
    if after.orphans - before.orphans:
        yield f"orphans that were none: {dict(after.orphans - before.orphans)}"
    options, values = (after.words[word] - before.words[word] for word in ("option", "value"))
    if options != values:
        yield f"{options:+} options and {values:+} values"


def pairs_are_as_reported(trial: Trial) -> Iterator[str]:
    """The flags of the result are those of the input, less what is reported as dropped, with what is added."""
    programs = trial.programs
    if programs is None:
        return
    before, after = programs
    expected = Counter(before.pairs)
    if trial.changes_flags:
        expected.subtract(report.pair.spelled for report in trial.outcome.pairs if report.action == "dropped")
        expected.update(report.pair.spelled for report in trial.outcome.pairs if report.action == "added")
    counts = Counter({pair: count for pair, count in expected.items() if count})
    if counts != after.pairs:
        yield f"more pairs than reported: {dict(after.pairs - counts)}; fewer: {dict(counts - after.pairs)}"


def all_else_stays(trial: Trial) -> Iterator[str]:
    """Beside flags, C++ standards and `pass`, the result says what the input says, spelled as it was."""
    programs = trial.programs
    if programs is None:
        return
    before, after = programs
    if before.shape != after.shape:
        yield "the syntax trees differ in more than flags"
    if before.rest != after.rest:
        yield "the texts differ in more than flags"


def lines_outside_stay(trial: Trial) -> Iterator[str]:
    """Each line without flags is there as it was, in order; blank ones and comments next to flags may move."""
    programs = trial.programs
    if programs is None:
        return
    before, after = programs
    lines = before.lines
    touchable = set(before.touchable)
    for step in (1, -1):
        for index in sorted(before.touchable):
            near = index + step
            while 0 <= near < len(lines) and (not lines[near].strip() or lines[near].lstrip().startswith("#")):
                touchable.add(near)
                near += step
    results = iter(after.lines)
    for index, line in enumerate(lines):
        if index not in touchable and line not in results:
            yield f"line {index + 1} is not as it was: {line!r}"
            return


def line_ends_stay(trial: Trial) -> Iterator[str]:
    """No new kind of line end comes in, and the end of the file and its mark stay."""
    outcome = trial.outcome
    if outcome.source == trial.given.source:
        return
    before, after = trial.given.source, outcome.source
    if before.startswith(_BOM) is not after.startswith(_BOM):
        yield "a byte order mark came or went"
    kinds = set(re.findall(rb"\r\n|\r|\n", after)) - (set(re.findall(rb"\r\n|\r|\n", before)) or {b"\n"})
    if kinds:
        yield f"new line ends: {kinds}"
    if trial.base and trial.result and (trial.base[-1:] in b"\r\n") is not (trial.result[-1:] in b"\r\n"):
        yield "the last line end came or went"


def comments_stay(trial: Trial) -> Iterator[str]:
    """A comment on a line of its own stays; one behind a flag may go with it; none comes."""
    programs = trial.programs
    if programs is None:
        return
    before, after = programs
    mine = Counter(text for _, _, text in before.comments)
    theirs = Counter(text for _, _, text in after.comments)
    if theirs - mine:
        yield f"new comments: {dict(theirs - mine)}"
    may_go = Counter(text for line, alone, text in before.comments if not alone and line - 1 in before.touchable)
    if mine - theirs - may_go:
        yield f"lost comments: {dict(mine - theirs - may_go)}"


PROPERTIES: Final[tuple[Property, ...]] = (
    kind_fits_bytes,
    result_is_python,
    second_run_changes_nothing,
    lines_are_there,
    guard_comes_off,
    pairs_are_whole,
    pairs_are_as_reported,
    all_else_stays,
    lines_outside_stay,
    line_ends_stay,
    comments_stay,
)
