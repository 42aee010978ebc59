"""For a noxfile: patch a folder, or build and file a wheel, before the tests run. Imports no nox.

@nox.session
def tests(session):
    session.install("torch", "setuptools", "wheel", "ninja")
    session.install(archpatch.nox.build(session, "mamba_ssm", gpu="h200"))
    session.run("pytest")
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from archpatch.arch.selection import OnMissing, Policy
from archpatch.builder.asked import Wish, ask_for
from archpatch.builder.interpreter import find_python, probe
from archpatch.builder.patching import patch_file, setup_file
from archpatch.builder.requirement import parse_requirement
from archpatch.builder.sizing import Sizing
from archpatch.config import Config, load_config
from archpatch.errors import UsageError
from archpatch.jobs import Order, Terms, Workshop
from archpatch.pipeline import build as build_order

__all__ = ["Session", "build", "patch"]


class Session(Protocol):
    """What is used of `nox.Session`."""

    @property
    def virtualenv(self) -> Any:  # noqa: ANN401 - nox's ProcessEnv, whose `bin` is used
        """The session's environment."""

    @property
    def env(self) -> Mapping[str, str | None]:
        """The variables that its commands run with."""

    def log(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - nox's signature
        """Print a line of the session's."""

    def warn(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - nox's signature
        """Print a warning of the session's."""


def patch(
    session: Session,
    folder: str | Path,
    *,
    arch: str | None = None,
    gpu: str | tuple[str, ...] = (),
    on_missing: str | None = None,
    strict: bool = False,
) -> None:
    """Rewrite the `setup.py` in `folder` in place, as `archpatch patch` does.

    Without `arch` and `gpu` the session's `ARCHPATCH_*` variables decide, then `TORCH_CUDA_ARCH_LIST`, then the
    project's settings; without any of these nothing is changed. Raises `NoMatchingArch`, `SetupRefused` and the other
    errors of `archpatch`.
    """
    file, config, environ = setup_file(Path(folder)), load_config(Path.cwd()), _environ(session)
    asked = ask_for(_wishes(arch, gpu, environ), _configured(config.values), environ)
    given = _Given(environ, config)
    for note in asked.notes:
        session.warn(f"archpatch: {note}")
    torch = probe(find_python(_python(session))).torch
    patched = patch_file(
        file,
        asked=asked,
        policy=_policy(on_missing, strict=strict, given=given),
        allow_known_bad=given.flag("allow-known-bad", default=False),
        cxx_standard=torch.cxx_standard if torch else None,
        recipes=config.recipes,
    )
    patched.write()
    for warning in patched.warnings:
        session.warn(f"archpatch: {warning}")
    request = "nothing, since nothing is asked for" if asked.request is None else f"{asked.request} ({asked.source})"
    session.log(f"archpatch: {file}: {patched.outcome.outcome} for {request}")


def build(  # noqa: PLR0913 - the options of `archpatch build`, all optional
    session: Session,
    requirement: str,
    *,
    arch: str | None = None,
    gpu: str | tuple[str, ...] = (),
    wheelhouse: str | Path | None = None,
    on_missing: str | None = None,
    strict: bool = False,
    toolkit: str | None = None,
    offline: bool | None = None,
) -> str:
    """Build a wheel with the session's interpreter, or find it filed, and return its path for `session.install`.

    The session has to have torch, setuptools, wheel and ninja installed by then. What is not given here is set as for
    `archpatch build`: by `ARCHPATCH_*` variables, then by the project's settings. Raises the errors of `archpatch`.
    """
    config, environ = load_config(Path.cwd()), _environ(session)
    given = _Given(environ, config)
    asked = ask_for(_wishes(arch, gpu, environ), _configured(config.values), environ, use_driver=True)
    for note in asked.notes:
        session.warn(f"archpatch: {note}")
    if given.text("max-jobs"):
        environ["MAX_JOBS"] = str(given.text("max-jobs"))
    terms = replace(
        given.terms,
        policy=_policy(on_missing, strict=strict, given=given),
        wheelhouse=Path(wheelhouse or given.text("wheelhouse") or "wheelhouse").absolute(),
        toolkit=toolkit or given.text("toolkit") or "auto",
        offline=given.flag("offline", default=False) if offline is None else offline,
    )
    order = Order(requirement=parse_requirement(requirement), asked=asked, python=_python(session), terms=terms)
    workshop = Workshop(environ)
    for note in workshop.notes:
        session.warn(f"archpatch: {note}")
    for library in ("httpcore2", "httpx2", "unearth"):
        # nox shows what every logger says, down to each header of each answer.
        logging.getLogger(library).setLevel(logging.WARNING)
    built = build_order(order, workshop=workshop, listener=_Log(session))
    codes = ", ".join(built.record.device_code)
    session.log(f"archpatch: {built.wheel.name} {'was there' if built.hit else 'is built'}: {codes}")
    return str(built.wheel)


class _Log:
    """Tells a nox session of a build's progress."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done = -1

    def stage(self, text: str) -> None:
        self._session.log(f"archpatch: {text}")

    def warn(self, text: str) -> None:
        self._session.warn(f"archpatch: {text}")

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Tell when a file is done: a session's output is a log."""
        if done != self._done:
            self._done = done
            self._session.log(f"archpatch: [{done}/{total}] {', '.join(files) or 'compiling'}")


def _wishes(arch: str | None, gpu: str | tuple[str, ...], environ: Mapping[str, str]) -> list[Wish]:
    return [
        Wish(arch=arch, gpu=(gpu,) if isinstance(gpu, str) else tuple(gpu), where="the noxfile"),
        Wish(
            arch=environ.get("ARCHPATCH_ARCH"),
            gpu=tuple(filter(None, [environ.get("ARCHPATCH_GPU")])),
            where="ARCHPATCH_ARCH or ARCHPATCH_GPU",
            source="env",
        ),
    ]


def _configured(values: Mapping[str, Any]) -> Wish:
    return Wish(arch=values.get("arch"), gpu=tuple(values.get("gpu", ())), where="[tool.archpatch]")


@dataclass(frozen=True, slots=True)
class _Given:
    """Settings that the noxfile leaves open: `ARCHPATCH_*` variables, then the project's file."""

    environ: Mapping[str, str]
    config: Config

    @property
    def terms(self) -> Terms:
        """What a noxfile never says itself."""
        sizing = Sizing(
            compress_mode=self.text("compress-mode") or "default", lineinfo=self.flag("lineinfo", default=True)
        )
        return Terms(
            wheelhouse=Path(),
            allow_known_bad=self.flag("allow-known-bad", default=False),
            replace=self.flag("replace", default=True),
            labelled=self.flag("local-version", default=True),
            sizing=sizing,
            recipes=self.config.recipes,
        )

    def text(self, option: str) -> str | None:
        """Return the value of an option as it is written, or None."""
        value = self.environ.get(f"ARCHPATCH_{option.replace('-', '_').upper()}")
        found = value or self.config.values.get(option.replace("-", "_"))
        return None if found is None else str(found)

    def flag(self, option: str, *, default: bool) -> bool:
        """Return the value of a switch. Raises `UsageError` for anything but yes and no."""
        text = self.text(option)
        if text is None:
            return default
        if text.lower() not in _SWITCHES:
            raise UsageError(f"{option}: {text!r} is neither yes nor no", remedy="Write true or false.")
        return _SWITCHES[text.lower()]


_SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def _policy(on_missing: str | None, *, strict: bool, given: _Given) -> Policy:
    chosen = on_missing or given.text("on-missing")
    try:
        return Policy(
            on_missing=OnMissing(chosen) if chosen else None, strict=strict or given.flag("strict", default=False)
        )
    except ValueError:
        choices = ", ".join(each.value for each in OnMissing)
        raise UsageError(f"on_missing {chosen!r} is not one of {choices}", remedy="Correct it.") from None


def _environ(session: Session) -> dict[str, str]:
    """Return the variables of the session; it marks those that it unsets with None."""
    return {name: value for name, value in {**os.environ, **session.env}.items() if value is not None}


def _python(session: Session) -> str | None:
    try:
        folder = session.virtualenv.bin
    except (AttributeError, ValueError):
        # A session without an environment of its own runs in this one.
        return None
    return str(Path(folder, "python"))
