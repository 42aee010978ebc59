"""For a noxfile: patch a folder, or build and file a wheel, before the tests run. Imports no nox.

@nox.session
def tests(session):
    session.install("torch", "setuptools", "wheel", "ninja")
    session.install(archpatch.nox.build(session, "mamba_ssm", gpu="h200"))
    session.run("pytest")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from archpatch.arch.selection import OnMissing, Policy
from archpatch.builder.asked import Wish, ask_for
from archpatch.builder.interpreter import probe
from archpatch.builder.patching import patch_file, setup_file
from archpatch.builder.requirement import parse_requirement
from archpatch.config import Config, load_config
from archpatch.errors import UsageError
from archpatch.pipeline import Order
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
    torch = probe(_python(session)).torch
    patched = patch_file(
        file,
        asked=asked,
        policy=_policy(on_missing, strict=strict, environ=environ, config=config),
        cxx_standard=torch.cxx_standard if torch else None,
        recipes=config.recipes,
    )
    patched.write()
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
    offline: bool = False,
) -> str:
    """Build a wheel with the session's interpreter, or find it filed, and return its path for `session.install`.

    The session has to have torch, setuptools, wheel and ninja installed by then. What is not given here is set as for
    `archpatch build`: by `ARCHPATCH_*` variables, then by the project's settings. Raises the errors of `archpatch`.
    """
    config, environ = load_config(Path.cwd()), _environ(session)
    house = wheelhouse or environ.get("ARCHPATCH_WHEELHOUSE") or str(config.values.get("wheelhouse", "wheelhouse"))
    order = Order(
        requirement=parse_requirement(requirement),
        asked=ask_for(_wishes(arch, gpu, environ), _configured(config.values), environ, use_driver=True),
        policy=_policy(on_missing, strict=strict, environ=environ, config=config),
        wheelhouse=Path(house).absolute(),
        python=_python(session),
        toolkit=toolkit or environ.get("ARCHPATCH_TOOLKIT") or str(config.values.get("toolkit", "auto")),
        offline=offline,
        recipes=config.recipes,
    )
    built = build_order(order, environ=environ, listener=_Log(session))
    codes = ", ".join(built.record.device_code)
    session.log(f"archpatch: {built.wheel.name} {'was there' if built.hit else 'is built'}: {codes}")
    return str(built.wheel)


class _Log:
    """Tells a nox session of a build's progress."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stage(self, text: str) -> None:
        self._session.log(f"archpatch: {text}")

    def warn(self, text: str) -> None:
        self._session.warn(f"archpatch: {text}")

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Stay silent: a session's output is a log, and the compile's own log is kept."""


def _wishes(arch: str | None, gpu: str | tuple[str, ...], environ: Mapping[str, str]) -> list[Wish]:
    return [
        Wish(arch=arch, gpu=(gpu,) if isinstance(gpu, str) else tuple(gpu), where="the noxfile"),
        Wish(
            arch=environ.get("ARCHPATCH_ARCH"),
            gpu=tuple(filter(None, [environ.get("ARCHPATCH_GPU")])),
            where="ARCHPATCH_ARCH or ARCHPATCH_GPU",
        ),
    ]


def _configured(values: Mapping[str, Any]) -> Wish:
    return Wish(arch=values.get("arch"), gpu=tuple(values.get("gpu", ())), where="[tool.archpatch]")


def _policy(on_missing: str | None, *, strict: bool, environ: Mapping[str, str], config: Config) -> Policy:
    chosen = on_missing or environ.get("ARCHPATCH_ON_MISSING") or config.values.get("on_missing")
    try:
        return Policy(
            on_missing=OnMissing(chosen) if chosen else None, strict=strict or bool(config.values.get("strict"))
        )
    except ValueError:
        choices = ", ".join(each.value for each in OnMissing)
        raise UsageError(f"on_missing {chosen!r} is not one of {choices}", remedy="Correct it.") from None


def _environ(session: Session) -> dict[str, str]:
    """Return the variables of the session; it marks those that it unsets with None."""
    return {name: value for name, value in {**os.environ, **session.env}.items() if value is not None}


def _python(session: Session) -> Path | None:
    folder = getattr(session.virtualenv, "bin", None)
    return Path(folder, "python") if folder else None
