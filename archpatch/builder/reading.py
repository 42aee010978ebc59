"""Read a `setup.py`: rewrite it, capture what it comes to, and put that through the nets."""

from __future__ import annotations

import ast
import contextlib
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

from archpatch.arch.arch import DeviceCode, Pair
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import select
from archpatch.builder.capture import Capture, capture
from archpatch.builder.cmake import ByVariable
from archpatch.builder.cmake_net import Wanted, check_cmake
from archpatch.builder.nets import (
    ANOTHER_TOOLKIT,
    Expected,
    Explain,
    check_flags,
    check_guarded,
    check_none_lost_all,
    selected_at_all,
    untold,
)
from archpatch.builder.task import Site
from archpatch.builder.toolchain import Needs, require
from archpatch.errors import CaptureFailed, NoMatchingArch, ToolchainError
from archpatch.rewrite.guard import put_guard, torch_list
from archpatch.rewrite.outcome import Refused, Rewritten, Unchanged
from archpatch.rewrite.refusals import flag_source
from archpatch.rewrite.signs import cuda_line, own_variables
from archpatch.rewrite.source import rewrite_source

__all__ = ["Reading"]


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Reading:
    """A `setup.py` that is being rewritten and captured; `original` are its bytes as they came."""

    site: Site
    original: bytes

    def rewrite(self) -> Rewritten | Unchanged:
        """Rewrite for the request; raises where it is refused."""
        task = self.site.task
        standard = task.bench.torch.cxx_standard
        outcome = rewrite_source(self.original, task.request, policy=task.policy, cxx_standard=standard)
        if isinstance(outcome, Refused):
            raise outcome.error()
        for warning in outcome.selection.warnings if outcome.selection else ():
            task.listener.warn(warning)
        return outcome

    def codes_for_variable(self, outcome: Rewritten | Unchanged) -> tuple[DeviceCode, ...]:
        """Return what the package's own arch variable has to name, so that nothing that stays is switched off by it."""
        task = self.site.task
        if outcome.guarded:
            if isinstance(self._unpatched, CaptureFailed):
                # It does not run without its variable, so that has to name all that is asked for.
                return task.device_code
            codes = selected_at_all(self.before, task.request, task.policy)
            own = self.before.device_code
        elif outcome.selection is not None:
            codes = outcome.selection.device_code
            own = codes - {pair.device_code for pair in outcome.selection.added}
        else:
            return task.device_code
        if any(code not in own and not code.ptx for code in codes):
            # The package does not know an arch that it gets: with the variable unset, nothing is switched off.
            return ()
        return tuple(sorted(codes)) if any(not code.ptx for code in codes) else task.device_code

    def capture(
        self, outcome: Rewritten | Unchanged, codes: tuple[DeviceCode, ...]
    ) -> tuple[Rewritten | Unchanged, Capture]:
        """Capture the rewritten file; where torch has no flags for what was asked, a guard gets them to nvcc.

        The outcome that is returned has that guard. Raises `ToolchainError` where nvcc does not know an arch either,
        or a guard cannot help.
        """
        task = self.site.task
        captured = self._run(outcome, codes)
        if not captured.refused_by_torch:
            return outcome, captured
        if outcome.selection is not None:
            check_none_lost_all(
                captured, outcome.selection, unpatched=lambda: self.before, explain=self._explain(outcome)
            )
        require(task.bench.findings(Needs(pairs=tuple(map(Pair.of, task.device_code)))))
        if not outcome.guarded and torch_list(task.request) is None:
            outcome = self._with_guard(outcome)
            captured = self._run(outcome, codes)
        for extension in captured.refused_by_torch:
            raise ToolchainError(
                f"extension {extension.name} has no arch flags of its own, and torch {task.bench.torch.version} has "
                f"none for {task.arch_list}: {extension.torch_refused}",
                remedy="Install a torch that knows this arch, or write its flags into setup.py.",
            )
        return outcome, captured

    def _run(self, outcome: Rewritten | Unchanged, codes: tuple[DeviceCode, ...]) -> Capture:
        """Capture once. Where a guard leaves nothing, the error tells of pairs in the text that come to nothing."""
        try:
            return capture(self.site.workplace(outcome.source, codes))
        except NoMatchingArch as error:
            told = frozenset() if isinstance(self._unpatched, CaptureFailed) else self.before.device_code
            hidden = {report.pair.device_code for report in outcome.pairs} & {*self.site.task.device_code} - told
            if not hidden:
                raise
            raise NoMatchingArch(
                f"{error.message.rstrip('.')}; {self._explain(outcome)(hidden)}", remedy=ANOTHER_TOOLKIT
            ) from None

    def _with_guard(self, outcome: Rewritten | Unchanged) -> Rewritten:
        """Return `outcome` with a guard, which gives nvcc what torch has no flags for."""
        task = self.site.task
        encoding, _ = tokenize.detect_encoding(BytesIO(outcome.source).readline)
        text = outcome.source.decode(encoding)
        return Rewritten(
            source=put_guard(text, task.request, task.policy).encode(encoding),
            pairs=outcome.pairs,
            selection=outcome.selection,
            notes=outcome.notes,
            guarded=True,
            sources=(flag_source("not-in-torch", max(cuda_line(text), 1)),),
        )

    def check(self, outcome: Rewritten | Unchanged, captured: Capture) -> Expected:
        """Check what nvcc would be told through torch against what has to come of the original."""
        task = self.site.task
        if outcome.guarded and captured.cuda_extensions:
            self._tell_missing(self.before)
            return check_guarded(captured, self.before, request=task.request, policy=task.policy)
        return check_flags(
            captured,
            request=task.request,
            policy=task.policy,
            selection=outcome.selection,
            unpatched=lambda: self.before,
            explain=self._explain(outcome),
        )

    def tell_untold(self, outcome: Rewritten | Unchanged, captured: Capture) -> None:
        """Warn of pairs that stay in the text and come to nothing here.

        Raises `NoMatchingArch` where everything asked for has to be there.
        """
        task = self.site.task
        missing = untold(captured, outcome.selection) if outcome.selection else frozenset()
        if not missing:
            return
        message = self._explain(outcome)(missing)
        if task.policy.strict:
            raise NoMatchingArch(message, remedy="Use another toolkit (--toolkit), or leave out --strict.")
        task.listener.warn(f"{message}: left out")

    def check_cmake(self, captured: Capture, codes: tuple[DeviceCode, ...]) -> tuple[ByVariable, ...]:
        """Check what CMake would be told; raises as `check_cmake`."""
        task = self.site.task
        wanted = Wanted(
            codes=frozenset(codes or task.device_code),
            is_for_gpus=isinstance(task.request, GpuRequest),
            package=task.recipe.name,
            variable=task.recipe.arch_variable,
            environ=task.variables(codes, arch_list=task.arch_list, sources=1, local_version=None),
            in_text=_own_variables(self.original),
        )
        return check_cmake(captured, wanted, task.policy)

    @property
    def before(self) -> Capture:
        """What the `setup.py` as it came would compile, with the package's own arch variable unset; taken once."""
        if isinstance(self._unpatched, CaptureFailed):
            raise self._unpatched
        return self._unpatched

    @cached_property
    def _unpatched(self) -> Capture | CaptureFailed:
        try:
            return capture(self.site.workplace(self.original, (), arch_list=self.site.task.any_arch_list))
        except CaptureFailed as error:
            return error

    def _explain(self, outcome: Rewritten | Unchanged) -> Explain:
        """Return what says of device code in the text that it comes to nothing here, with its lines."""
        lines = {report.pair.device_code: report.line for report in outcome.pairs}
        release = self.site.task.bench.toolkit.release

        def explained(codes: Iterable[DeviceCode]) -> str:
            places = [f"{code} (line {lines.get(code, '?')})" for code in sorted(codes)]
            stand = "stands" if len(places) == 1 else "stand"
            return f"{', '.join(places)} {stand} in setup.py under a condition that CUDA {release} makes false"

        return explained

    def _tell_missing(self, original: Capture) -> None:
        """Warn of what a guard will leave out, per extension."""
        task = self.site.task
        for extension in original.cuda_extensions:
            if extension.has_own_pairs:
                with contextlib.suppress(NoMatchingArch):
                    for warning in select(extension.pairs, task.request, task.policy).warnings:
                        task.listener.warn(f"extension {extension.name}: {warning}")


def _own_variables(source: bytes) -> tuple[str, ...]:
    """Return the arch variables that the text of `setup.py` reads somewhere."""
    with warnings.catch_warnings():
        # What Python warns of in the file is no news of ours.
        warnings.simplefilter("ignore")
        return own_variables(ast.parse(source))
