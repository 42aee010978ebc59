"""Which pairs to keep, drop and add for a request: the matching rules, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.coverage import Verdict, best_for
from archpatch.arch.gpu import GpuRequest
from archpatch.errors import KnownBadArch, NoMatchingArch

__all__ = ["Action", "Decision", "KnownBad", "OnMissing", "Policy", "Request", "Selection", "select"]

Request = ArchRequest | GpuRequest
Action = Literal["kept", "dropped", "added"]


class OnMissing(str, Enum):
    """What to do about a requested arch that the package does not compile."""

    ERROR = "error"
    """Leave it out; raise where nothing remains. The default for archs."""
    NEAREST = "nearest"
    """Take what a GPU of that arch would load instead. The default for GPU types."""
    ADD = "add"
    """Compile it all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBad:
    """An arch whose cubins of this package are reported wrong; `reason` cites the report."""

    arch: Arch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How strictly to match; `on_missing` None stands for the request's own default.

    `can_compile` says whether code that is not there can be added, PTX beside a kept cubin included. A finished binary
    has only what it holds.
    """

    on_missing: OnMissing | None = None
    strict: bool = False
    known_bad: tuple[KnownBad, ...] = ()
    can_compile: bool = True

    def on_missing_for(self, request: Request) -> OnMissing:
        """Return what `on_missing` means for `request`."""
        if self.on_missing is not None:
            return self.on_missing
        return OnMissing.NEAREST if isinstance(request, GpuRequest) else OnMissing.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one pair, and why."""

    pair: Pair
    action: Action
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The outcome for all pairs: decisions in the order of the pairs, added ones last.

    `missing` is the requested device code that is neither kept nor added; `warnings` are for a person.
    """

    decisions: tuple[Decision, ...]
    missing: tuple[DeviceCode, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Pair, ...]:
        """The pairs that stay."""
        return self._with("kept")

    @property
    def dropped(self) -> tuple[Pair, ...]:
        """The pairs that go."""
        return self._with("dropped")

    @property
    def added(self) -> tuple[Pair, ...]:
        """The pairs that the package does not have and gets."""
        return self._with("added")

    @property
    def device_code(self) -> frozenset[DeviceCode]:
        """What the binary holds in the end."""
        return frozenset(pair.device_code for pair in (*self.kept, *self.added))

    def _with(self, action: Action) -> tuple[Pair, ...]:
        return tuple(decision.pair for decision in self.decisions if decision.action == action)


def select(pairs: Iterable[Pair], request: Request, policy: Policy) -> Selection:
    """Decide about each of a package's `pairs`.

    An arch request keeps exactly what it names; a GPU request keeps what each GPU would load. Raises
    `NoMatchingArch` where nothing remains, where a GPU would have nothing to run, and with `policy.strict` where
    anything that was asked for is missing; `KnownBadArch` where that is because it is known bad.
    """
    choice = _Choice(tuple(dict.fromkeys(pairs)), policy)
    if isinstance(request, GpuRequest):
        for gpu in request.gpus:
            choice.take_gpu(gpu.name, gpu.arch, policy.on_missing_for(request))
    else:
        for arch in request.archs:
            choice.take_arch(arch, policy.on_missing_for(request), ptx=arch in request.ptx)
    if not choice.reasons or (choice.missing and (policy.strict or isinstance(request, GpuRequest))):
        raise choice.complaint(request)
    return choice.selection()


@dataclass(slots=True)
class _Choice:
    """The selection in the making: `reasons` holds what is taken, by device code."""

    pairs: tuple[Pair, ...]
    policy: Policy
    reasons: dict[DeviceCode, str] = field(default_factory=dict)
    missing: list[tuple[DeviceCode, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def bad(self) -> Mapping[Arch, str]:
        return {entry.arch.base: entry.reason for entry in self.policy.known_bad}

    @property
    def available(self) -> tuple[DeviceCode, ...]:
        """What the package compiles, less the cubins that are known bad."""
        codes = dict.fromkeys(pair.device_code for pair in self.pairs)
        return tuple(code for code in codes if not self.is_bad(code))

    @property
    def has(self) -> str:
        return "the package compiles" if self.policy.can_compile else "it holds"

    @property
    def lacks(self) -> str:
        return "the package does not compile" if self.policy.can_compile else "it does not hold"

    def is_bad(self, code: DeviceCode) -> bool:
        return not code.ptx and code.arch.base in self.bad

    def take_arch(self, arch: Arch, on_missing: OnMissing, *, ptx: bool) -> None:
        cubin, portable = DeviceCode(arch), DeviceCode(arch, ptx=True)
        if cubin in self.available:
            self.reasons.setdefault(cubin, f"{arch} was asked for")
        elif on_missing is OnMissing.ADD and not self.is_bad(cubin):
            self.reasons.setdefault(cubin, f"{arch} was asked for and is not among the package's own")
        elif on_missing is not OnMissing.NEAREST or not self.take_nearest(arch.base, str(arch)):
            self.missing.append((cubin, str(arch)))
        if not ptx:
            return
        is_wanted = cubin in self.reasons or on_missing is OnMissing.NEAREST
        can_be_added = self.policy.can_compile and cubin in self.reasons
        if is_wanted and (portable in self.available or can_be_added):
            self.reasons.setdefault(portable, f"{arch}+PTX was asked for")
        else:
            self.missing.append((portable, f"{arch}+PTX"))

    def take_gpu(self, name: str, arch: Arch, on_missing: OnMissing) -> None:
        codes, verdict = best_for(self.available, arch)
        if verdict is Verdict.NATIVE:
            self.reasons.update((code, f"{name} ({arch}) runs it natively") for code in codes)
        elif on_missing is OnMissing.ADD and arch not in self.bad:
            self.reasons.setdefault(DeviceCode(arch), f"{name} is {arch}, which is not among the package's own")
        elif on_missing is not OnMissing.NEAREST or not self.take_nearest(arch, f"{name} ({arch})"):
            self.missing.append((DeviceCode(arch), f"{name} ({arch})"))

    def take_nearest(self, arch: Arch, wanted: str) -> bool:
        """Take what a GPU of `arch` would load, PTX that is added included; return whether there is anything."""
        codes, verdict = best_for((*self.available, *self.reasons), arch)
        for code in codes:
            self.reasons.setdefault(code, f"it is what {wanted} loads, in want of its own")
        if verdict is Verdict.JIT:
            self.warnings.append(
                f"{wanted} compiles {', '.join(map(str, codes))} just in time: its driver must know that PTX version."
            )
        return bool(codes)

    def selection(self) -> Selection:
        present = {pair.device_code for pair in self.pairs}
        decisions = [self.decide(pair) for pair in self.pairs]
        decisions += [
            Decision(pair=Pair.of(code), action="added", reason=reason)
            for code, reason in sorted(self.reasons.items())
            if code not in present
        ]
        warnings = [
            f"{wanted} was asked for, but {self.lacks} {code}{self.why_bad(code)}: left out."
            for code, wanted in self.missing
        ]
        return Selection(
            decisions=tuple(decisions),
            missing=tuple(code for code, _ in self.missing),
            warnings=(*warnings, *self.warnings),
        )

    def decide(self, pair: Pair) -> Decision:
        code = pair.device_code
        if code in self.reasons:
            return Decision(pair=pair, action="kept", reason=self.reasons[code])
        if self.is_bad(code):
            return Decision(pair=pair, action="dropped", reason=f"known bad: {self.bad[code.arch.base]}")
        return Decision(pair=pair, action="dropped", reason="not asked for")

    def why_bad(self, code: DeviceCode) -> str:
        return f" soundly ({self.bad[code.arch.base]})" if self.is_bad(code) else ""

    def complaint(self, request: Request) -> NoMatchingArch:
        """Return the error for a request that is not met."""
        wanted = ", ".join(wanted for _, wanted in self.missing)
        there = ", ".join(str(pair.device_code) for pair in self.pairs) or "nothing"
        bad = [f"{code} is known bad: {self.bad[code.arch.base]}" for code, _ in self.missing if self.is_bad(code)]
        message = f"no matching arch for {wanted or request}: {self.has} {there}"
        error = KnownBadArch if bad else NoMatchingArch
        return error("; ".join([message, *bad]), remedy=" ".join(self.remedies(request, has_bad=bool(bad))))

    def remedies(self, request: Request, *, has_bad: bool) -> Iterable[str]:
        for arch in dict.fromkeys(code.arch.base for code, _ in self.missing):
            codes, verdict = best_for(self.available, arch)
            if codes:
                how = "would be compiled just in time" if verdict is Verdict.JIT else "would run"
                yield f"{', '.join(map(str, codes))} {how} on a GPU of {arch}: take it with --on-missing nearest."
        to_add = [str(code.arch) for code, _ in self.missing if not code.ptx and not self.is_bad(code)]
        if to_add and self.policy.can_compile and self.policy.on_missing_for(request) is not OnMissing.ADD:
            yield f"--on-missing add compiles {', '.join(to_add)} all the same."
        if has_bad:
            yield "--allow-known-bad takes it as it is."
