"""Options that several commands share: declared once, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from archpatch.arch.selection import Policy
    from archpatch.builder.asked import Asked, Source
    from archpatch.jobs import Terms, Workshop

__all__ = [
    "asked_from",
    "build_options",
    "json_option",
    "matching_options",
    "offline_option",
    "option",
    "policy_from",
    "policy_options",
    "python_option",
    "replace_option",
    "terms_from",
    "toolkit_option",
    "wheel_options",
    "wheelhouse_option",
    "workshop_from",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Option(click.Option):
    """An option whose value on the command line must not be empty, as a CI's variable is that is not set."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value and where it comes from. Raises `UsageError` for an empty one of the command line."""
        from archpatch.errors import UsageError

        value, source = super().consume_value(ctx, opts)
        texts = value if isinstance(value, list | tuple) else (value,)
        if source is ParameterSource.COMMANDLINE and any(isinstance(text, str) and not text.strip() for text in texts):
            raise UsageError(f"{max(self.opts, key=len)} is empty", remedy="Give it a value, or leave it out.")
        return value, source


#: `click.option` for every option of every command.
option = partial(click.option, cls=_Option)


def _option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return a click option that `ARCHPATCH_<NAME>` sets too."""
    long = next(name for name in names if name.startswith("--"))
    variable = long.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return option(*names, envvar=f"ARCHPATCH_{variable}", show_envvar=True, **settings)


class _GpuNames(click.ParamType):  # type: ignore[type-arg] # it takes none in older clicks
    """GPU types; in a variable they are separated by commas, since names have spaces in them (`rtx 4090`)."""

    name = "gpu"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - click's signature
        """Take the text as it is: the types are looked up where all wishes meet."""
        return value


def matching_options(function: _F) -> _F:
    """Add what is asked for and how strictly: --arch, --gpu, --on-missing, --strict, --allow-known-bad."""
    for decorate in reversed(
        (
            _option("--arch", metavar="LIST", help="Which archs, as in TORCH_CUDA_ARCH_LIST: '8.0;9.0+PTX'."),
            _option(
                "--gpu",
                multiple=True,
                type=_GpuNames(),
                metavar="TYPE",
                help="What must run: h200, l4, ... or native. Repeatable.",
            ),
            policy_options,
        )
    ):
        function = decorate(function)
    return function


def policy_options(function: _F) -> _F:
    """Add how strictly to match: --on-missing, --strict, --allow-known-bad."""
    for decorate in reversed(
        (
            _option(
                "--on-missing",
                type=click.Choice(["error", "nearest", "add"]),
                help="What to do about an arch that the package does not compile [default: error with --arch, "
                "nearest with --gpu].",
            ),
            _option("--strict", is_flag=True, help="Fail if anything that was asked for is missing."),
            _option("--allow-known-bad", is_flag=True, help="Take archs whose code is reported to be wrong."),
        )
    ):
        function = decorate(function)
    return function


replace_option = _option(
    "--replace/--no-replace",
    default=True,
    show_default=True,
    help="Whether a wheel may take the name of one that was built from something else.",
)


def wheel_options(function: _F) -> _F:
    """Add what wheel it shall be: --local-version, --compress-mode, --lineinfo."""
    for decorate in reversed(
        (
            _option(
                "--local-version/--no-local-version",
                default=True,
                show_default=True,
                help="Whether the version says what is inside: +cu130torch2.14.1sm90.",
            ),
            _option(
                "--compress-mode",
                # As `archpatch.builder.sizing` has them.
                type=click.Choice(["default", "size", "balance", "speed", "none"]),
                default="default",
                show_default=True,
                help="How nvcc compresses device code: size is smallest, and takes its time.",
            ),
            _option(
                "--lineinfo/--no-lineinfo",
                default=True,
                show_default=True,
                help="Whether device code keeps source lines, for profilers, where the package asks for it.",
            ),
        )
    ):
        function = decorate(function)
    return function


def build_options(function: _F) -> _F:
    """Add how a build is filed and how much of the machine it takes: --replace, --max-jobs; and what wheel it is."""
    for decorate in reversed(
        (
            replace_option,
            wheel_options,
            _option("--max-jobs", type=click.IntRange(min=1), help="Compilers side by side [default: from the cores]."),
        )
    ):
        function = decorate(function)
    return function


python_option = _option("--python", metavar="PATH", help="The interpreter that holds torch [default: this one].")
wheelhouse_option = _option(
    "--wheelhouse",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("wheelhouse"),
    show_default=True,
    help="The folder of the wheels.",
)
offline_option = _option("--offline", is_flag=True, help="Use no network: take what is filed or cached.")
toolkit_option = _option(
    "--toolkit",
    default="auto",
    show_default=True,
    metavar="auto|system|pypi|FOLDER",
    help="The CUDA toolkit: the machine's, NVIDIA's nvcc wheels from PyPI, or a folder.",
)
json_option = option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def asked_from(ctx: click.Context, *, use_driver: bool) -> Asked:
    """Return what --arch and --gpu, the environment and the project's settings ask for, in that order."""
    import os

    from archpatch.builder.asked import Wish, ask_for

    def wish(source: ParameterSource, where: str, kind: Source | None = None) -> Wish:
        arch, gpu = (
            ctx.params[name] if ctx.params[name] and ctx.get_parameter_source(name) is source else None
            for name in ("arch", "gpu")
        )
        names = [name for name, value in (("arch", arch), ("gpu", gpu)) if value]
        place = " and ".join(where.format(name, name.upper()) for name in names)
        return Wish(arch=arch, gpu=tuple(gpu or ()), where=place, source=kind)

    return ask_for(
        [
            wish(ParameterSource.COMMANDLINE, "--{}"),
            wish(ParameterSource.ENVIRONMENT, "ARCHPATCH_{1}", "env"),
        ],
        wish(ParameterSource.DEFAULT_MAP, "tool.archpatch.{}"),
        os.environ,
        use_driver=use_driver,
    )


def terms_from(ctx: click.Context) -> Terms:
    """Return the terms of a build that the options and the project's settings set."""
    from archpatch.builder.sizing import Sizing
    from archpatch.cli.settings import Settings
    from archpatch.jobs import Terms

    options, settings = ctx.params, ctx.find_object(Settings)
    return Terms(
        policy=policy_from(ctx),
        allow_known_bad=options["allow_known_bad"],
        wheelhouse=Path(options["wheelhouse"]).absolute(),
        toolkit=options["toolkit"],
        offline=options["offline"],
        replace=options.get("replace", True),
        labelled=options["local_version"],
        sizing=Sizing(compress_mode=options["compress_mode"], lineinfo=options["lineinfo"]),
        recipes=settings.recipes if settings else (),
    )


def workshop_from(ctx: click.Context, *, torch: str | None = None, fetches: bool = True) -> Workshop:
    """Return what all orders of a command share; warn of what is ignored in the environment."""
    import os

    from archpatch.builder.interpreter import named_torch
    from archpatch.cli.show import warn
    from archpatch.jobs import Workshop

    environ = dict(os.environ)
    if ctx.params.get("max_jobs"):
        environ["MAX_JOBS"] = str(ctx.params["max_jobs"])
    workshop = Workshop(environ, torch=None if torch is None else named_torch(torch), fetches=fetches)
    for note in workshop.notes:
        warn(note)
    return workshop


def policy_from(ctx: click.Context) -> Policy:
    """Return the matching rules that the options set; known-bad archs come from the recipe."""
    from archpatch.arch.selection import OnMissing, Policy

    on_missing = ctx.params["on_missing"]
    return Policy(on_missing=OnMissing(on_missing) if on_missing else None, strict=ctx.params["strict"])
