"""pip's own settings for package indexes, as pip itself reports them."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from archpatch.builder.commands import Runner, run_command
from archpatch.errors import ConfigError

__all__ = ["IndexSettings", "read_pip_settings"]

#: Later ones win, per option. pip reads `global`, its command's own section and the environment; a fetch for a build
#: is all of these commands, and a private index set for one of them must not be passed over for the public one.
_SECTIONS = ("global", "install", "wheel", "download", ":env:")

_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}

#: pip's `strtobool`.
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")

#: What requests, and so pip, takes for a certificate bundle where pip has no `cert` of its own.
_BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Where packages come from, and how they are reached; defaults are pip's. `timeout` is in seconds."""

    index_url: str = "https://pypi.org/simple"
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 15.0
    retries: int = 5

    @property
    def index_urls(self) -> tuple[str, ...]:
        """The indexes to ask; none when pip's `no-index` is set."""
        return () if self.no_index else (self.index_url, *self.extra_index_urls)


def read_pip_settings(
    *, python: str = sys.executable, run: Runner = run_command, environ: Mapping[str, str] = os.environ
) -> IndexSettings:
    """Return what `python -m pip config list` says, or what the `PIP_*` variables say where there is no pip.

    Sections count as `pip download`'s would, and those of `install` and `wheel` before it. Raises `ConfigError`.
    """
    options = _merge(_ask_pip(python, run=run, environ=environ))
    bundle = next((environ[name] for name in _BUNDLE_VARIABLES if environ.get(name)), None)
    defaults = IndexSettings()
    return IndexSettings(
        index_url=options.get("index-url", defaults.index_url),
        extra_index_urls=tuple(options.get("extra-index-url", "").split()),
        find_links=tuple(options.get("find-links", "").split()),
        no_index=_boolean("no-index", options.get("no-index", "no")),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
        cert=options.get("cert", bundle),
        client_cert=options.get("client-cert"),
        proxy=_proxy(options.get("proxy")),
        timeout=_number("timeout", options.get("timeout", str(defaults.timeout))),
        retries=int(_number("retries", options.get("retries", str(defaults.retries)))),
    )


def _ask_pip(python: str, *, run: Runner, environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (section, option, value) for each of pip's settings."""
    environment = dict(environ)
    if config := environ.get("PIP_CONFIG_FILE"):
        environment["PIP_CONFIG_FILE"] = str(Path(config).absolute())
    try:
        # `-m` looks in the working directory first: a file named pip.py in a project must not run.
        output = run([python, "-m", "pip", "config", "list"], cwd=Path("/"), environment=environment)
    except FileNotFoundError:
        return list(_variables(environ))
    if output.status == 0:
        return list(_parse_list(output.stdout))
    if "No module named" in output.stderr:
        return list(_variables(environ))
    raise ConfigError(
        f"pip cannot read its own settings: {output.stderr.strip()[-500:]}",
        remedy=f"Correct the file that it names; `{python} -m pip config debug` lists them all.",
    )


def _parse_list(text: str) -> Iterator[tuple[str, str, str]]:
    """Read lines like `global.index-url='https://...'` and `:env:.timeout='60'`."""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        section, dot, option = key.rpartition(".")
        if not equals or not dot:
            continue
        try:
            yield section, option, str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in environ.items():
        if name.startswith("PIP_"):
            yield ":env:", name.removeprefix("PIP_").lower().replace("_", "-"), value


def _merge(found: list[tuple[str, str, str]]) -> dict[str, str]:
    """Return each option's value from the last section that has one; pip takes an empty value for none."""
    merged: dict[str, str] = {}
    for wanted in _SECTIONS:
        merged.update(
            {_ALIASES.get(option, option): value for section, option, value in found if section == wanted and value}
        )
    return merged


def _boolean(option: str, value: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ConfigError(f"pip's {option} is {value!r}", remedy="Set it to true or false (`pip config set`).")
    return value.lower() in _TRUE


def _number(option: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(
            f"pip's {option} is {value!r}, not a number", remedy="Set it with `pip config set`."
        ) from None


def _proxy(value: str | None) -> str | None:
    """Return pip's `proxy` with the scheme that requests would assume."""
    return value if value is None or "://" in value else f"http://{value}"
