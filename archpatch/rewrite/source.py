"""`rewrite_source`: read all, decide all, then write once."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from archpatch.arch.selection import Policy, Request
from archpatch.rewrite.decide import conditional
from archpatch.rewrite.guard import GUARD_BEGIN, Stripped, put_guard, strip_guard
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten, Unchanged
from archpatch.rewrite.proof import Proof, prove
from archpatch.rewrite.reading import File, read
from archpatch.rewrite.refusals import refusal
from archpatch.rewrite.signs import own_variables
from archpatch.rewrite.tree import Edits, Unreadable, parse
from archpatch.rewrite.write import write_flags, write_standards

__all__ = ["rewrite_source"]


def rewrite_source(
    source: bytes, request: Request | None, *, policy: Policy, cxx_standard: int | None = None
) -> Outcome:
    """Rewrite a `setup.py` so that its own arch flags are what `request` asks for.

    `request` None leaves the arch flags and an earlier guard alone. `cxx_standard` (20 for C++20) is what a lower
    pinned standard is raised to. Never raises: what can neither be proven nor guarded is `Refused`, with the source as
    it was.
    """
    stripped = Stripped(source) if request is None else strip_guard(source)
    try:
        return _rewrite(read(parse(stripped.source), source, stripped), request, policy, cxx_standard)
    except Unreadable as error:
        line = stripped.line_before(error.line)
        return Refused(source=source, refusals=(refusal(error.shape, line, detail=error.reason),))
    except RecursionError:
        return Refused(source=source, refusals=(refusal("too-deep", 1),))


def _rewrite(file: File, request: Request | None, policy: Policy, cxx_standard: int | None) -> Outcome:
    proof = Proof(fates=file.untouched) if request is None else prove(file, request, policy)
    if isinstance(proof, Refused):
        return proof
    edits = Edits()
    write_flags(edits, proof.fates)
    notes = (*write_standards(edits, file.standards, file.lines, cxx_standard), *_notes(file, request))
    if proof.selection is not None:
        notes = (*notes, *_conditions(file, proof))
    if edits and not file.is_exact:
        return file.refused([refusal("not-reproducible", 1)])
    source = file.tree.render(edits) if edits else file.tree.source
    if proof.sources and request is not None:
        source = _with_guard(file, source, request, policy)
    pairs = file.guarded_pairs() if proof.sources else file.reports(proof.fates, proof.selection)
    kind = Unchanged if source == file.given else Rewritten
    return kind(
        source=source,
        pairs=tuple(pairs),
        selection=proof.selection,
        notes=notes,
        guarded=bool(proof.sources),
        sources=proof.sources,
    )


def _with_guard(file: File, source: bytes, request: Request, policy: Policy) -> bytes:
    encoding = file.tree.module.encoding
    with warnings.catch_warnings():
        # What Python warns of in a file is no news of ours, and where warnings are errors it would end the run.
        warnings.simplefilter("ignore")
        guarded = put_guard(source.decode(encoding), request, policy).encode(encoding)
        ast.parse(guarded)
    return guarded


def _notes(file: File, request: Request | None) -> tuple[str, ...]:
    """Return what is to be said about archs that are set elsewhere."""
    if request is None:
        line = file.tree.text.partition(GUARD_BEGIN)[0].count("\n") + 1
        return (f"line {line}: the guard of an earlier run is left",) if GUARD_BEGIN in file.tree.text else ()
    if "CMAKE_CUDA_ARCHITECTURES" not in file.tree.text:
        return ()
    names = ", ".join(own_variables(file.tree.syntax)) or "CUDAARCHS"
    return (f"CMake compiles for the archs that {names} names: archpatch does not change them, set that variable",)


def _conditions(file: File, proof: Proof) -> Iterator[str]:
    """Say which pairs remain and may not be compiled all the same: the toolkit's version often stands in front."""
    for fate, pair in conditional(proof.fates):
        line = file.line(fate.unit.node)
        condition = _condition(file.tree.syntax, file.stripped.line_within(line))
        if condition:
            yield f"line {line}: {pair} depends on the condition at line {file.stripped.line_before(condition)}"


def _condition(syntax: ast.Module, line: int) -> int:
    """Return the line of the innermost condition around `line`, 0 where there is none."""
    found = 0
    for node in ast.walk(syntax):
        if isinstance(node, ast.If | ast.IfExp):
            sides = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]
            if any(side.lineno <= line <= (side.end_lineno or 0) for side in sides):
                found = max(found, node.test.lineno)
    return found
