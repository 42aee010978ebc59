"""The one place that calls archpatch's rewrite: as `archpatch build` does, with what the recipe knows."""

from __future__ import annotations

import contextlib

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.selection import Policy, Request, select
from archpatch.errors import NoMatchingArch
from archpatch.recipes.recipe import Recipe, known_bad_for, spell_archs
from archpatch.rewrite.outcome import Outcome
from archpatch.rewrite.source import rewrite_source
from corpus.matrix import Question
from corpus.seen import Seen

__all__ = ["kept_archs", "policy_for", "rewrite", "variables"]


def policy_for(question: Question, recipe: Recipe) -> Policy:
    """Return the policy of a build of the recipe's package."""
    known_bad = known_bad_for(recipe, question.toolkit.release)
    return Policy(on_missing=question.on_missing, known_bad=known_bad)


def rewrite(source: bytes, request: Request | None, policy: Policy) -> Outcome:
    """Rewrite `source`, with the C++ standard left alone."""
    return rewrite_source(source, request, policy=policy, cxx_standard=None)


def kept_archs(outcome: Outcome, request: Request, policy: Policy, before: Seen) -> tuple[Arch, ...]:
    """Return the archs for the package's own variable: what the text keeps, or what a guard will keep."""
    selection = getattr(outcome, "selection", None)
    codes = set(selection.device_code) if selection else set()
    for command in before.commands if getattr(outcome, "guarded", False) else ():
        with contextlib.suppress(NoMatchingArch):
            codes |= select(command.own.pairs, request, policy).device_code if command.own.pairs else set()
    return tuple(sorted({code.arch for code in codes if not code.ptx})) or request.archs


def variables(question: Question, recipe: Recipe, archs: tuple[Arch, ...]) -> dict[str, str]:
    """Return the variables of the patched run that archpatch sets."""
    own = recipe.arch_variable
    found = {**dict(recipe.environment), "TORCH_CUDA_ARCH_LIST": question.arch_list}
    return found if own is None else {**found, own.name: spell_archs(own, map(DeviceCode, archs))}
