"""The verdict on one file for one question: does nvcc get what the selection rules give?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.arch.selection import Policy, Request, select
from archpatch.builder.source import project_name
from archpatch.errors import ArchpatchError, NoMatchingArch
from archpatch.recipes.recipe import Recipe, find_recipe
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten
from corpus.harness import Harness, Settings
from corpus.matrix import Question
from corpus.rewriting import kept_archs, policy_for, rewrite, variables
from corpus.seen import Command, Seen
from corpus.toolkits import Toolkit
from corpus.tree import Tree

__all__ = ["Case", "Verdict", "VerdictName"]

VerdictName = Literal["right", "refused", "wrong", "unrunnable"]
Rewrite = Callable[[bytes, Request | None, Policy], Outcome]

#: How a `setup.py` says that it wants to see a GPU.
_WANTS_GPU = re.compile(
    r"NVIDIA|nvidia|GPU|driver|compute capabilit|capability|cuda devices|CUDA device|nvcc", re.IGNORECASE
)
_LIST = "TORCH_CUDA_ARCH_LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out; `extensions` has for each one that is wrong the flags before and after, and what was expected."""

    verdict: VerdictName
    reason: str
    extensions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What nvcc must get, by command, and the extensions that have pairs and lose all (with the reason)."""

    codes: Mapping[tuple[str, str], frozenset[DeviceCode]]
    lost: Mapping[str, NoMatchingArch]


class Case:
    """A file under test: it remembers every run, since many questions ask for the same one.

    `rewrite` is a parameter so that a test can pass a wrong one.
    """

    def __init__(self, harness: Harness, tree: Tree, *, rewrite: Rewrite = rewrite) -> None:
        self.harness = harness
        self.tree = tree
        self.source = tree.file.read_bytes()
        self.seconds: list[float] = []
        self._rewrite = rewrite
        self._runs: dict[tuple[bytes, Settings], Seen] = {}
        self._outcomes: dict[tuple[Request | None, Policy], Outcome] = {}
        self._raised: str | None = None
        self._faults: dict[tuple[Request, Policy], str | None] = {}

    def capture(self, source: bytes, settings: Settings) -> Seen:
        """Run `source`, once for all that ask."""
        key = (source, settings)
        if key not in self._runs:
            self._runs[key] = self.harness.capture(self.tree, source, settings)
            self.seconds.append(self._runs[key].seconds)
        return self._runs[key]

    def outcome(self, request: Request | None, policy: Policy) -> Outcome:
        """Rewrite for `request`, once for all that ask."""
        key = (request, policy)
        if key not in self._outcomes:
            try:
                self._outcomes[key] = self._rewrite(self.source, request, policy)
            except Exception as error:  # noqa: BLE001 - a rewrite that raises is a verdict, and no reason to stop
                self._outcomes[key] = Refused(source=self.source)
                self._raised = f"the rewrite raises {type(error).__name__}: {error}"
        return self._outcomes[key]

    @cached_property
    def recipe(self) -> Recipe:
        """What archpatch knows of the package."""
        try:
            name = project_name(self.tree.folder)
        except ArchpatchError:
            name = self.tree.file.stem
        return find_recipe(name)

    def judge(self, question: Question) -> Verdict:
        """Answer one question."""
        return _Trial(self, question).verdict()

    def fault(self, request: Request, policy: Policy) -> str | None:
        """Return what is wrong with the text of a rewrite, whatever it does; None where nothing is."""
        key = (request, policy)
        if key not in self._faults:
            self._faults[key] = self._find_fault(request, policy)
        return self._faults[key]

    def _find_fault(self, request: Request, policy: Policy) -> str | None:
        outcome = self.outcome(request, policy)
        if self._raised is not None:
            return self._raised
        if not isinstance(outcome, Rewritten) and outcome.source != self.source:
            return f"a file that is {outcome.outcome} came back with other bytes"
        if self.outcome(None, policy).source != self.source:
            return "without a request the bytes changed"
        if not isinstance(outcome, Rewritten):
            return None
        try:
            compile(outcome.source, "setup.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"the patched file is not valid Python: {error}"
        again = self._rewrite(outcome.source, request, policy)
        return None if again.source == outcome.source else f"a second rewrite gives other bytes ({again.outcome})"


class _Trial:
    """One question about one file."""

    def __init__(self, case: Case, question: Question) -> None:
        self.case = case
        self.question = question
        self.request = question.request
        self.policy = policy_for(question, case.recipe)
        self.note = ""
        self.capability: tuple[int, int] | None = None
        self.is_guarded = False

    def verdict(self) -> Verdict:
        """Weigh the text first, then the runs."""
        outcome = self.case.outcome(self.request, self.policy)
        fault = self.case.fault(self.request, self.policy)
        if fault is not None:
            return self.say("wrong", fault)
        self.is_guarded = bool(getattr(outcome, "guarded", False))
        if isinstance(outcome, Refused) and outcome.no_match is None:
            return self.say("refused", "; ".join(map(str, outcome.refusals)))
        before = self.unpatched()
        if isinstance(outcome, Refused):
            return self.no_match_said(before, outcome)
        own = variables(self.question, self.case.recipe, kept_archs(outcome, self.request, self.policy, before))
        after = self.run(outcome.source, own)
        found = self.compare(before, after)
        has_own = any(command.own.pairs for command in before.commands)
        if found.verdict == "wrong" and not has_own and self.case.recipe.arch_variable is not None:
            # Only the package's own variable makes it build for any arch: then it is the same question with it set.
            with_own = self.compare(self.run(self.case.source, own), after)
            return with_own if with_own.verdict == "right" else found
        return found

    def say(self, verdict: VerdictName, reason: str, extensions: Mapping[str, Any] | None = None) -> Verdict:
        return Verdict(verdict=verdict, reason=" ".join((reason + self.note).split()), extensions=extensions or {})

    def run(self, source: bytes, own: Mapping[str, str]) -> Seen:
        return self.case.capture(source, Settings.of(self.question.toolkit, own, self.capability))

    def unpatched(self) -> Seen:
        """Run the file as it came, in the way that suits it: without the arch list, else with it, else with a GPU.

        The list is set where the file reads it, that is where it makes a difference to what the file itself does.
        """
        before = self.with_or_without_list()
        if before.failure is not None and _WANTS_GPU.search(before.failure.message):
            arch = self.request.archs[-1]
            self.capability = (arch.major, arch.minor)
            with_gpu = self.with_or_without_list()
            if with_gpu.failure is None:
                self.note = f" (with a GPU of {arch.base} in sight, which setup.py asks for)"
                return with_gpu
            self.capability = None
        return before

    def with_or_without_list(self) -> Seen:
        environment = dict(self.case.recipe.environment)
        without = self.run(self.case.source, environment)
        with_list = self.run(self.case.source, {**environment, _LIST: self.question.arch_list})
        return without if without.view == with_list.view else with_list

    def no_match_said(self, before: Seen, outcome: Refused) -> Verdict:
        if before.failure is not None:
            return self.say("unrunnable", str(before.failure))
        expected = self.expected(before)
        if expected.lost:
            return self.say("right", f"no match, and it is said: {outcome.no_match}")
        rows = _rows(before.commands, (), expected)
        return self.say("wrong", f"refused although there is a match: {outcome.no_match}", rows)

    def expected(self, before: Seen) -> Expected:
        codes: dict[tuple[str, str], frozenset[DeviceCode]] = {}
        lost: dict[str, NoMatchingArch] = {}
        for command in before.commands:
            if not command.own.pairs:
                codes[command.key] = _of_torch(self.request)
                continue
            try:
                codes[command.key] = select(command.own.pairs, self.request, self.policy).device_code
            except NoMatchingArch as error:
                lost.setdefault(command.extension, error)
        return Expected(codes=codes, lost=lost)

    def compare(self, before: Seen, after: Seen) -> Verdict:
        if before.failure is not None:
            return self.weigh_failures(before, after)
        expected = self.expected(before)
        if after.failure is not None and "archpatch" in after.failure.message:
            if expected.lost:
                return self.say("right", f"no match, and the guard says so: {after.failure}")
            return self.say("wrong", f"the guard raises: {after.failure}", _rows(before.commands, (), expected))
        if after.failure is not None:
            return self.say("wrong", f"the patched file fails: {after.failure}", _rows(before.commands, (), expected))
        if expected.lost:
            return self.weigh_lost(before, after, expected)
        return self.weigh_flags(before, after, expected)

    def weigh_failures(self, before: Seen, after: Seen) -> Verdict:
        if after.failure is None:
            return self.say("unrunnable", f"{before.failure}; the patched file runs")
        if after.failure.kind != before.failure.kind:  # type: ignore[union-attr]
            return self.say("wrong", f"unpatched: {before.failure}; patched: {after.failure}")
        return self.say("unrunnable", str(before.failure))

    def weigh_lost(self, before: Seen, after: Seen, expected: Expected) -> Verdict:
        """Some extension has nothing left: it must not be built at all, or a net must see it."""
        names = {command.extension for command in after.commands}
        own = {command.extension for command in after.commands if command.own.pairs}
        if own and not names & set(expected.lost):
            left = Expected(codes=expected.codes, lost={})
            kept = tuple(command for command in before.commands if command.extension not in expected.lost)
            found = self.weigh(kept, after.commands, left)
            return found if found.verdict == "wrong" else self.say("right", "extensions for other archs are left out")
        if any(name in names and name not in own for name in expected.lost):
            return self.say(
                "right", f"no match, and the check of the flags says so: {next(iter(expected.lost.values()))}"
            )
        rows = _rows(before.commands, after.commands, expected)
        return self.say("wrong", f"nothing says that nothing matches: {next(iter(expected.lost.values()))}", rows)

    def weigh_flags(self, before: Seen, after: Seen, expected: Expected) -> Verdict:
        if not before.commands and not after.commands:
            return self.say("right", "no nvcc command: nothing to do")
        failed = next((each.torch_failed for each in after.commands if each.torch_failed), None)
        if failed is not None and all(each.is_torchs for each in before.commands):
            return self.say("refused", f"torch refuses the list: {failed}")
        return self.weigh(before.commands, after.commands, expected)

    def unknown_to_nvcc(self, expected: Expected) -> str:
        codes = frozenset(code for codes in expected.codes.values() for code in codes)
        unknown = frozenset(code for code in codes if not _is_base_known(code, self.question.toolkit))
        return _listed(unknown) if unknown else ""

    def weigh(self, before: tuple[Command, ...], after: tuple[Command, ...], expected: Expected) -> Verdict:
        unknown = self.unknown_to_nvcc(expected)
        wrong = _differences(before, after, expected, may_torch_fill_in=self.is_guarded or bool(unknown))
        if not wrong:
            is_torchs = all(not command.own.pairs for command in before)
            told = (
                f", of which nvcc {self.question.toolkit} does not know {unknown}: the build says so" if unknown else ""
            )
            return self.say(
                "right", ("torch's flags for the list" if is_torchs else "as the selection rules say") + told
            )
        if all(_is_archless(key, before, after) for key in wrong):
            return self.say("refused", "the check of the flags: nvcc would be told no arch")
        rows = {name: row for name, row in _rows(before, after, expected).items() if name in map(_name, wrong)}
        return self.say("wrong", "; ".join(f"{_name(key)}: {why}" for key, why in wrong.items()), rows)


def _is_base_known(code: DeviceCode, toolkit: Toolkit) -> bool:
    return f"sm_{code.arch.base.number}" in toolkit.codes


def _of_torch(request: Request) -> frozenset[DeviceCode]:
    """Return what torch compiles for the list that archpatch sets."""
    if isinstance(request, ArchRequest):
        return frozenset(request.device_code)
    return frozenset(DeviceCode(arch) for arch in request.archs)


def _differences(
    before: tuple[Command, ...], after: tuple[Command, ...], expected: Expected, *, may_torch_fill_in: bool
) -> dict[tuple[str, str], str]:
    """Return what is wrong, by command.

    An extension that has pairs of its own and is left to torch is wrong even where torch adds the same, since the
    check of the flags then stops a build that would work. Not so beside a guard, which is checked by what nvcc gets,
    and where nvcc does not know the arch: then the build stops anyway.
    """
    then, now = ({command.key: command for command in commands} for commands in (before, after))
    wrong = {}
    for key in dict.fromkeys((*then, *now)):
        if key not in now:
            wrong[key] = "it is gone"
        elif key not in then:
            wrong[key] = "it was not there before"
        else:
            problems = set(now[key].arch_flags.problems) - set(then[key].arch_flags.problems)
            got = frozenset(pair.device_code for pair in now[key].arch_flags.pairs)
            if problems:
                wrong[key] = f"nvcc would get {'; '.join(sorted(problems))}"
            elif then[key].own.pairs and now[key].is_torchs and not may_torch_fill_in:
                wrong[key] = "its own pairs are gone, and torch fills in"
            elif got != expected.codes[key]:
                wrong[key] = f"nvcc would get {_listed(got)}, not {_listed(expected.codes[key])}"
    return wrong


def _is_archless(key: tuple[str, str], before: tuple[Command, ...], after: tuple[Command, ...]) -> bool:
    """Tell whether nvcc was told no arch before, and is told none now: another flag keeps torch silent."""
    return all(
        any(command.key == key and not command.arch_flags.pairs and not command.is_torchs for command in commands)
        for commands in (before, after)
    )


def _rows(before: tuple[Command, ...], after: tuple[Command, ...], expected: Expected) -> dict[str, Any]:
    """Return for each command its arch flags before and after, and what was expected."""
    then, now = ({command.key: _shown(command) for command in commands} for commands in (before, after))
    return {
        _name(key): {
            "unpatched": then.get(key),
            "patched": now.get(key),
            "expected": sorted(map(str, expected.codes[key])) if key in expected.codes else "no match",
        }
        for key in dict.fromkeys((*then, *now))
    }


def _shown(command: Command) -> list[str]:
    """Return the flags that have to do with archs, and those beside them."""
    flags = command.flags
    return [
        flag
        for at, flag in enumerate(flags)
        if re.search(r"arch|gencode|generate-code|gpu-code|compute_|sm_\d|^-code", flag)
        or (at and re.fullmatch(r"-gencode|--generate-code|-arch|-code", flags[at - 1]))
    ]


def _name(key: tuple[str, str]) -> str:
    return f"{key[0]} [{key[1]}]" if key[1] else key[0]


def _listed(codes: frozenset[DeviceCode]) -> str:
    return " ".join(map(str, sorted(codes, key=lambda code: (code.ptx, code.arch)))) or "no arch"
