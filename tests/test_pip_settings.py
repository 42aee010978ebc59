from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from archpatch.builder.commands import Output
from archpatch.builder.pip_settings import IndexSettings, read_pip_settings
from archpatch.errors import ConfigError


@dataclass
class FakePip:
    """Answers `pip config list` with `lines`."""

    lines: Sequence[str] = ()
    status: int = 0
    stderr: str = ""
    asked: list[tuple[Sequence[str], Path, Mapping[str, str]]] = field(default_factory=list)

    def __call__(self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
        self.asked.append((command, cwd, environment))
        return Output(status=self.status, stdout="\n".join(self.lines), stderr=self.stderr)


def missing(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
    raise FileNotFoundError(command[0], cwd, environment)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), IndexSettings()),
        (("global.index-url='https://a/simple'",), IndexSettings(index_url="https://a/simple")),
        (
            ("download.index-url='https://b'", "global.index-url='https://a'", "install.index-url='https://c'"),
            IndexSettings(index_url="https://b"),
        ),
        (("install.index-url='https://c'", "global.index-url='https://a'"), IndexSettings(index_url="https://c")),
        ((":env:.index-url='https://e'", "download.index-url='https://b'"), IndexSettings(index_url="https://e")),
        ((":env:.index-url=''", "global.index-url='https://a'"), IndexSettings(index_url="https://a")),
        (
            ("global.extra-index-url='https://b\\nhttps://c'",),
            IndexSettings(extra_index_urls=("https://b", "https://c")),
        ),
        (
            ("global.find-links='/w ~/x'", 'global.trusted-host="h"'),
            IndexSettings(find_links=("/w", "~/x"), trusted_hosts=("h",)),
        ),
        (("global.no-index='true'",), IndexSettings(no_index=True)),
        (("global.no-index='0'",), IndexSettings(no_index=False)),
        (("global.cert='/c.pem'", "global.client-cert='/k.pem'"), IndexSettings(cert="/c.pem", client_cert="/k.pem")),
        (("global.proxy='user:pw@host:3128'",), IndexSettings(proxy="http://user:pw@host:3128")),
        (("global.proxy='https://host'",), IndexSettings(proxy="https://host")),
        ((":env:.default-timeout='60'", "global.retries='2'"), IndexSettings(timeout=60.0, retries=2)),
        (("list.format='columns'", "freeze.index-url='https://x'", "no setting", "global.x=unquoted"), IndexSettings()),
    ],
)
def test_sections_count_as_in_pip(lines: Sequence[str], expected: IndexSettings) -> None:
    assert read_pip_settings(run=FakePip(lines), environ={}) == expected


def test_pip_is_asked_away_from_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pip = FakePip()
    read_pip_settings(python="/venv/bin/python", run=pip, environ={"PIP_CONFIG_FILE": "pip.conf", "A": "b"})
    environment = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "A": "b"}
    assert pip.asked == [(["/venv/bin/python", "-m", "pip", "config", "list"], Path("/"), environment)]


@pytest.mark.parametrize("run", [missing, FakePip(status=1, stderr="/x/python: No module named pip")])
def test_without_pip_its_variables_count(run: FakePip) -> None:
    environ = {"PIP_INDEX_URL": "https://e/simple", "PIP_EXTRA_INDEX_URL": "https://f https://g", "PIPX_HOME": "/x"}
    assert read_pip_settings(run=run, environ=environ) == IndexSettings(
        index_url="https://e/simple", extra_index_urls=("https://f", "https://g")
    )


@pytest.mark.parametrize(
    ("environ", "cert"),
    [
        ({"REQUESTS_CA_BUNDLE": "/r.pem", "CURL_CA_BUNDLE": "/c.pem"}, "/r.pem"),
        ({"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": "/c.pem"}, "/c.pem"),
        ({"PIP_CERT": "/p.pem", "REQUESTS_CA_BUNDLE": "/r.pem"}, "/p.pem"),
    ],
)
def test_certificates_come_from_where_pip_takes_them(environ: Mapping[str, str], cert: str) -> None:
    assert read_pip_settings(run=missing, environ=environ).cert == cert


@pytest.mark.parametrize("line", ["global.no-index='maybe'", "global.timeout='soon'", "global.retries='x'"])
def test_a_setting_that_cannot_be_read(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pip_settings(run=FakePip([line]), environ={})
    assert "pip" in caught.value.message
    assert caught.value.remedy


def test_a_broken_configuration_file_is_named() -> None:
    pip = FakePip(status=2, stderr="Configuration file contains invalid syntax in /etc/pip.conf.")
    with pytest.raises(ConfigError, match=r"/etc/pip\.conf"):
        read_pip_settings(run=pip, environ={})


def test_no_index_leaves_none_to_ask() -> None:
    assert IndexSettings(extra_index_urls=("https://b",)).index_urls == ("https://pypi.org/simple", "https://b")
    assert IndexSettings(no_index=True, extra_index_urls=("https://b",)).index_urls == ()
