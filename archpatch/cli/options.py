"""Options that several commands share: declared once, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from archpatch.arch.selection import Policy
    from archpatch.builder.asked import Asked, Source

__all__ = [
    "asked_from",
    "build_options",
    "json_option",
    "matching_options",
    "offline_option",
    "policy_from",
    "python_option",
    "python_path",
    "replace_option",
    "toolkit_option",
    "wheelhouse_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def _option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return a click option that `ARCHPATCH_<NAME>` sets too."""
    long = next(name for name in names if name.startswith("--"))
    variable = long.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=f"ARCHPATCH_{variable}", show_envvar=True, **settings)


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
            _option("--arch", metavar="LIST", help="What to compile, as in TORCH_CUDA_ARCH_LIST: '8.0;9.0+PTX'."),
            _option(
                "--gpu",
                multiple=True,
                type=_GpuNames(),
                metavar="TYPE",
                help="What must run: h200, l4, ... or native. Repeatable.",
            ),
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


def build_options(function: _F) -> _F:
    """Add how a build is filed and how much of the machine it takes: --replace, --local-version, --max-jobs."""
    for decorate in reversed(
        (
            replace_option,
            _option(
                "--local-version/--no-local-version",
                default=True,
                show_default=True,
                help="Whether the version says what is inside: +cu130torch2.14.1sm90.",
            ),
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
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def python_path(text: str | None) -> Path | None:
    """Return the interpreter that `--python` names: a path, or a program on PATH. Raises `MissingFile`."""
    import shutil

    from archpatch.errors import MissingFile

    if text is None:
        return None
    found = shutil.which(text)
    if found is None:
        name = f"{text.rstrip('/')}/bin/python" if Path(text).is_dir() else ".venv/bin/python"
        raise MissingFile(f"--python {text}: there is no such program", remedy=f"Name an interpreter: {name}.")
    # Not resolved: a virtual environment's python is a link, and what it is called decides what it sees.
    return Path(found).absolute()


def asked_from(ctx: click.Context, *, use_driver: bool) -> Asked:
    """Return what --arch and --gpu, the environment and the project's settings ask for, in that order."""
    import os

    from archpatch.builder.asked import Wish, ask_for

    def wish(source: ParameterSource, where: str, kind: Source | None = None) -> Wish:
        arch, gpu = (
            ctx.params[name] if ctx.params[name] and ctx.get_parameter_source(name) is source else None
            for name in ("arch", "gpu")
        )
        return Wish(arch=arch, gpu=tuple(gpu or ()), where=where.format("gpu" if gpu else "arch"), source=kind)

    return ask_for(
        [
            wish(ParameterSource.COMMANDLINE, "--{}"),
            wish(ParameterSource.ENVIRONMENT, "ARCHPATCH_ARCH or ARCHPATCH_GPU", "env"),
        ],
        wish(ParameterSource.DEFAULT_MAP, "tool.archpatch.{}"),
        os.environ,
        use_driver=use_driver,
    )


def policy_from(ctx: click.Context) -> Policy:
    """Return the matching rules that the options set; known-bad archs come from the recipe."""
    from archpatch.arch.selection import OnMissing, Policy

    on_missing = ctx.params["on_missing"]
    return Policy(on_missing=OnMissing(on_missing) if on_missing else None, strict=ctx.params["strict"])
