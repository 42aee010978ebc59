from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from archpatch.builder.commands import run_command
from archpatch.builder.download import download
from archpatch.builder.git import clone
from archpatch.builder.index import find_sdist
from archpatch.builder.pip_settings import IndexSettings, read_pip_settings
from archpatch.builder.requirement import GitRequirement, IndexRequirement, parse_requirement
from archpatch.builder.source import prepare
from archpatch.errors import ConfigError, FetchFailed, HashMismatch, NoSources, UnknownPackage

pytestmark = pytest.mark.integration

CAUSAL_CONV1D = "3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b"


def sdist_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("p_q-1.0/setup.py")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"pi\n"))
    return buffer.getvalue()


SDIST = sdist_bytes()
DIGEST = hashlib.sha256(SDIST).hexdigest()


@dataclass
class Answer:
    """One answer of the server; `length` is announced in place of the body's own."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


@dataclass
class Site:
    """A server on loopback: a list of answers per path, the last one repeated."""

    url: str
    server: ThreadingHTTPServer
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def page(self, *links: str, name: str = "p-q") -> None:
        body = "".join(f'<a href="{link}">x</a>' for link in links).encode()
        self.answers[f"/simple/{name}/"] = [Answer(body, headers={"Content-Type": "text/html"})]

    def next_answer(self, path: str, authorization: str | None) -> Answer:
        self.asked.append((path, authorization))
        rest = self.answers.get(path, [Answer(status=404)])
        return rest.pop(0) if len(rest) > 1 else rest[0]


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = site.next_answer(self.path, self.headers.get("Authorization"))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            self.wfile.write(answer.body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/gzip")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(url=f"http://127.0.0.1:{server.server_port}", server=server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def settings_of(url: str, *, retries: int = 0) -> IndexSettings:
    return IndexSettings(index_url=f"{url}/simple", retries=retries, timeout=5)


def fetch(site: Site | str, store: Path, *, text: str = "p_q", retries: int = 0) -> Path:
    settings = settings_of(site if isinstance(site, str) else site.url, retries=retries)
    requirement = parse_requirement(text)
    assert isinstance(requirement, IndexRequirement)
    found = find_sdist(requirement, settings, store=store)
    return download(found, settings, sha256=requirement.sha256, store=store)


def test_a_page_and_its_sdist(site: Site, tmp_path: Path) -> None:
    site.page(f"/f/p_q-1.0.tar.gz#sha256={DIGEST}", "/f/p_q-0.9.tar.gz", "/f/p_q-2.0-cp311-cp311-linux_x86_64.whl")
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST)]
    assert fetch(site, tmp_path).read_bytes() == SDIST
    assert [path for path, _ in site.asked] == ["/simple/p-q/", "/f/p_q-1.0.tar.gz"]
    fetch(site, tmp_path)
    assert [path for path, _ in site.asked][2:] == ["/simple/p-q/"]


def test_json_pages(site: Site, tmp_path: Path) -> None:
    files = [
        {"filename": "p_q-1.0.tar.gz", "url": "/f/p_q-1.0.tar.gz", "hashes": {"sha256": DIGEST}, "yanked": False},
        {"filename": "p_q-2.0.tar.gz", "url": "/f/p_q-2.0.tar.gz", "hashes": {}, "yanked": True},
        {"filename": "p_q-3.0.tar.gz", "url": "/f/p_q-3.0.tar.gz", "hashes": {}, "requires-python": ">=4"},
    ]
    body = json.dumps({"files": files}).encode()
    site.answers["/simple/p-q/"] = [Answer(body, headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})]
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST)]
    assert fetch(site, tmp_path).parent.name == DIGEST
    requirement = parse_requirement("p_q==2.0")
    assert isinstance(requirement, IndexRequirement)
    assert find_sdist(requirement, settings_of(site.url), store=tmp_path).yanked == ""


def test_what_a_killed_download_left_goes_with_the_next(site: Site, tmp_path: Path) -> None:
    left = tmp_path / "archpatch-work-killed" / "part"
    left.parent.mkdir()
    left.write_bytes(SDIST[:10])
    site.page(f"/f/p_q-1.0.tar.gz#sha256={DIGEST}")
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST)]
    fetch(site, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_a_find_links_url_of_the_archive_itself(site: Site, tmp_path: Path) -> None:
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST, headers={"Content-Type": "application/gzip"})]
    links = IndexSettings(no_index=True, find_links=(f"{site.url}/f/p_q-1.0.tar.gz",), retries=0)
    found = find_sdist(IndexRequirement(name="p_q"), links, store=tmp_path)
    assert download(found, links, store=tmp_path).read_bytes() == SDIST


def test_a_redirect_is_followed(site: Site, tmp_path: Path) -> None:
    site.answers["/simple/p-q/"] = [Answer(status=301, headers={"Location": "/other/p-q/"})]
    site.answers["/other/p-q/"] = [Answer(b'<a href="p_q-1.0.tar.gz">x</a>', headers={"Content-Type": "text/html"})]
    site.answers["/other/p-q/p_q-1.0.tar.gz"] = [Answer(status=302, headers={"Location": "/blob"})]
    site.answers["/blob"] = [Answer(SDIST)]
    assert fetch(site, tmp_path).read_bytes() == SDIST


def test_a_server_that_calls_the_archive_an_encoding(site: Site, tmp_path: Path) -> None:
    site.page(f"/f/p_q-1.0.tar.gz#sha256={DIGEST}")
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST, headers={"Content-Encoding": "gzip"})]
    assert fetch(site, tmp_path).read_bytes() == SDIST


def test_credentials_of_the_index_url_are_sent_and_not_shown(site: Site, tmp_path: Path) -> None:
    site.page("/f/p_q-1.0.tar.gz")
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(status=403)]
    site.url = site.url.replace("//", "//me:secret@")
    with pytest.raises(FetchFailed, match="403") as caught:
        fetch(site, tmp_path)
    assert all(authorization == "Basic bWU6c2VjcmV0" for _, authorization in site.asked)
    assert "secret" not in str(caught.value)
    assert "password" in (caught.value.remedy or "")


def test_an_unknown_package(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UnknownPackage, match="p_q is unknown"):
        fetch(site, tmp_path)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 502, 503])
def test_an_index_in_trouble_is_no_unknown_package(status: int, site: Site, tmp_path: Path) -> None:
    site.answers["/simple/p-q/"] = [Answer(status=status)]
    with pytest.raises(FetchFailed, match=f"{status}") as caught:
        fetch(site, tmp_path)
    assert site.url in caught.value.message
    assert caught.value.exit_status == 4


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"\x7fELF", headers={"Content-Type": "application/octet-stream"}),
        Answer(b"no type"),
        Answer(b"{", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Answer(b"[]", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Answer(b"\xff", headers={"Content-Type": "text/html; charset=utf-8"}),
        Answer(b'<a href="p_q-1.0.tar.gz">', headers={"Content-Type": "text/html"}, length=10_000),
        Answer(status=302, headers={"Location": "/simple/p-q/"}),
    ],
)
def test_a_page_that_is_none(answer: Answer, site: Site, tmp_path: Path) -> None:
    site.answers["/simple/p-q/"] = [answer]
    with pytest.raises(FetchFailed):
        fetch(site, tmp_path)


def test_a_transient_error_is_tried_again(site: Site, tmp_path: Path) -> None:
    site.page("/f/p_q-1.0.tar.gz")
    site.answers["/simple/p-q/"].insert(0, Answer(status=503))
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST[:20], length=len(SDIST)), Answer(SDIST)]
    assert fetch(site, tmp_path, retries=1).read_bytes() == SDIST


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(SDIST[:-1], length=len(SDIST)), FetchFailed),
        (Answer(SDIST[:-1]), HashMismatch),
        (Answer(status=404), FetchFailed),
        (Answer(status=500), FetchFailed),
    ],
)
def test_a_failed_download_leaves_nothing(answer: Answer, kind: type[FetchFailed], site: Site, tmp_path: Path) -> None:
    site.page(f"/f/p_q-1.0.tar.gz#sha256={DIGEST}")
    site.answers["/f/p_q-1.0.tar.gz"] = [answer]
    with pytest.raises(FetchFailed) as caught:
        fetch(site, tmp_path)
    assert type(caught.value) is kind
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - hidden files count


def test_a_wrong_pin(site: Site, tmp_path: Path) -> None:
    site.page("/f/p_q-1.0.tar.gz")
    site.answers["/f/p_q-1.0.tar.gz"] = [Answer(SDIST)]
    with pytest.raises(HashMismatch, match=DIGEST):
        fetch(site, tmp_path, text=f"p_q==1.0 --hash=sha256:{'0' * 64}")
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - hidden files count
    assert fetch(site, tmp_path, text=f"p_q==1.0 --hash=sha256:{DIGEST}").read_bytes() == SDIST


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_listens(tmp_path: Path) -> None:
    url = closed_port().replace("//", "//me:secret@")
    with pytest.raises(FetchFailed, match="refused") as caught:
        fetch(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert "pip config list" in (caught.value.remedy or "")


def test_a_host_without_an_address(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"no-such-host\.invalid"):
        fetch("https://no-such-host.invalid", tmp_path)


def test_one_unreachable_index_of_two_is_not_passed_over(site: Site, tmp_path: Path) -> None:
    site.page(f"/f/p_q-1.0.tar.gz#sha256={DIGEST}")
    both = IndexSettings(index_url=f"{site.url}/simple", extra_index_urls=(closed_port(),), retries=0)
    requirement = IndexRequirement(name="p_q")
    with pytest.raises(FetchFailed, match="refused"):
        find_sdist(requirement, both, store=tmp_path)
    pinned = IndexRequirement(name="p_q", sha256=DIGEST)
    assert find_sdist(pinned, both, store=tmp_path).sha256 == DIGEST


@pytest.mark.parametrize("host", ["index.invalid", "index.invalid:8080"])
@pytest.mark.parametrize("from_environment", [True, False])
def test_a_proxy_is_used(
    host: str,
    from_environment: bool,  # noqa: FBT001 - a case
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if from_environment:
        monkeypatch.setenv("http_proxy", site.url)
    page = Answer(b'<a href="p_q-1.0.tar.gz">x</a>', headers={"Content-Type": "text/html"})
    site.answers[f"http://{host}/simple/p-q/"] = [page]
    proxied = IndexSettings(
        index_url=f"http://{host}/simple",
        proxy=None if from_environment else site.url,
        trusted_hosts=(host,),
        retries=0,
    )
    assert find_sdist(IndexRequirement(name="p_q"), proxied, store=tmp_path).filename == "p_q-1.0.tar.gz"


def test_a_host_that_needs_no_proxy(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.page("/f/p_q-1.0.tar.gz")
    monkeypatch.setenv("http_proxy", closed_port())
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    for trusted in ((), ("127.0.0.1",)):
        settings = IndexSettings(index_url=f"{site.url}/simple", trusted_hosts=trusted, retries=0)
        assert find_sdist(IndexRequirement(name="p_q"), settings, store=tmp_path).filename == "p_q-1.0.tar.gz"


@pytest.fixture
def certificate(site: Site, tmp_path: Path) -> Path:
    """Make `site` speak TLS with a certificate of its own, and return that."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-keyout",
        "key",
        "-out",
        "cert",
    ]
    subprocess.run([*command, *names], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
    site.url = site.url.replace("http:", "https:")
    return tmp_path / "cert"


def test_certificates(certificate: Path, site: Site, tmp_path: Path) -> None:
    site.page("/f/p_q-1.0.tar.gz")
    url = f"{site.url}/simple"
    host = site.url.removeprefix("https://")
    requirement = IndexRequirement(name="p_q")
    (tmp_path / "no certificates").mkdir()
    for cert in (None, str(tmp_path / "no certificates")):
        with pytest.raises(FetchFailed, match="CERTIFICATE_VERIFY_FAILED"):
            find_sdist(requirement, IndexSettings(index_url=url, cert=cert), store=tmp_path)
    for settings in (
        IndexSettings(index_url=url, cert=str(certificate)),
        IndexSettings(index_url=url, trusted_hosts=(host,)),
        IndexSettings(index_url=url, trusted_hosts=("127.0.0.1",)),
    ):
        assert find_sdist(requirement, settings, store=tmp_path).filename == "p_q-1.0.tar.gz"


FULL_DISK = """
import sys
from pathlib import Path
from archpatch.builder.index import FoundSdist
from archpatch.builder.download import download
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import parse_requirement
from archpatch.builder.source import prepare
from archpatch.errors import DiskFull
from packaging.version import Version

sdist, folder, disk = map(Path, sys.argv[1:])
found = FoundSdist(name="p", version=Version("1"), filename="p-1.tar.gz", url=sdist.as_uri())
for attempt in (
    lambda: download(found, IndexSettings(), store=disk / "store"),
    lambda: prepare(parse_requirement(str(sdist)), disk / "from-sdist"),
    lambda: prepare(parse_requirement(str(folder)), disk / "from-folder"),
    lambda: prepare(parse_requirement("git+" + folder.as_uri()), disk / "from-git"),
):
    try:
        attempt()
    except DiskFull as error:
        print(type(error).__name__, error.remedy is not None, [p.name for p in disk.rglob("*") if p.name != "store"])
"""


def test_a_full_disk(git: Git, tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    git("project", "init", "-q")
    (tmp_path / "project" / "random").write_bytes(os.urandom(400_000))
    commit(git, tmp_path / "project", "full")
    with tarfile.open(tmp_path / "p-1.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "project", "p-1", filter=lambda info: None if ".git" in info.name else info)
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=200k none "$4" && exec "$0" -c "$1" "$2" "$3" "$4"'
    names = [str(tmp_path / name) for name in ("p-1.tar.gz", "project", "disk")]
    command = [unshare, "-rm", "sh", "-c", script, sys.executable, FULL_DISK, *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["DiskFull True []"] * 4


@pytest.mark.parametrize(
    "wrong", [{"cert": "/no/such.pem"}, {"client_cert": "/no/such.pem"}, {"proxy": "gopher://host"}]
)
def test_settings_that_cannot_be_used(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_sdist(IndexRequirement(name="p"), IndexSettings(**wrong), store=tmp_path)  # type: ignore[arg-type]
    assert caught.value.remedy


# --- pip and PyPI ------------------------------------------------------------------------------


def test_the_real_pip_is_read(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n    https://b/simple\n    https://c/simple\n"
        "retries = 3\n[download]\nindex-url = https://d/simple\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    read = read_pip_settings(environ={**environ, "PIP_CONFIG_FILE": str(config), "PIP_TIMEOUT": "7"})
    assert read.index_url == "https://d/simple"
    assert read.extra_index_urls == ("https://b/simple", "https://c/simple")
    assert (read.retries, read.timeout) == (3, 7.0)


def test_causal_conv1d_from_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHPATCH_CACHE", str(tmp_path / "cache"))
    pinned = parse_requirement("causal_conv1d==1.7.0", sha256=CAUSAL_CONV1D)
    tree = prepare(pinned, tmp_path / "tree")
    assert (tree.name, tree.version, tree.digest) == ("causal_conv1d", "1.7.0", CAUSAL_CONV1D)
    assert (tree.path / "csrc" / "causal_conv1d_fwd.cu").is_file()
    again = prepare(pinned, tmp_path / "again", settings=IndexSettings(index_url=closed_port()))
    assert again.digest == tree.digest
    offline = prepare(parse_requirement("causal_conv1d"), tmp_path / "offline", offline=True)
    assert offline.digest == tree.digest
    with pytest.raises(HashMismatch):
        prepare(parse_requirement("causal_conv1d==1.7.0", sha256="0" * 64), tmp_path / "wrong")
    with pytest.raises(UnknownPackage, match=r"1\.7\.0"):
        prepare(parse_requirement("causal_conv1d==1.6.99"), tmp_path / "unknown")


# --- git ---------------------------------------------------------------------------------------

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def run(folder: str, *arguments: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = ["git", "-c", "protocol.file.allow=always", *arguments]  # a submodule of a test is a local folder
        return subprocess.run(command, cwd=tmp_path / folder, check=True, capture_output=True, text=True).stdout.strip()

    return run


def commit(git: Git, repo: Path, text: str) -> str:
    (repo / "setup.py").write_text(text)
    git(repo.name, "add", "-A")
    git(repo.name, "commit", "-q", "-m", text)
    return git(repo.name, "rev-parse", "HEAD")


@pytest.fixture
def repo(git: Git, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with a tag, an annotated tag, a branch with a slash, and a submodule since its second commit."""
    git("repo", "init", "-q", "-b", "main")
    git("sub", "init", "-q", "-b", "main")
    commit(git, tmp_path / "sub", "sub")
    repo = tmp_path / "repo"
    commits = {"v1.0": commit(git, repo, "one")}
    git("repo", "tag", "v1.0")
    git("repo", "submodule", "--quiet", "add", (tmp_path / "sub").as_uri(), "csrc/sub")
    commits["v2.0"] = commit(git, repo, "two")
    git("repo", "tag", "-a", "v2.0", "-m", "two")
    git("repo", "checkout", "-q", "-b", "feature/x", "v1.0")
    commits["feature/x"] = commit(git, repo, "branch")
    git("repo", "checkout", "-q", "main")
    commits["main"] = commit(git, repo, "three")
    return repo, commits


@pytest.mark.parametrize("ref", ["v1.0", "v2.0", "feature/x", "main", None])
def test_a_tag_or_branch(ref: str | None, repo: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    path, commits = repo
    at = clone(GitRequirement(url=path.as_uri(), ref=ref), tmp_path / "out")
    assert at == commits[ref or "main"]
    assert (tmp_path / "out" / "csrc" / "sub" / "setup.py").exists() == (ref in ("v2.0", "main", None))


@pytest.mark.parametrize("length", [40, 10])
@pytest.mark.parametrize("name", ["v1.0", "feature/x"])
def test_a_commit(name: str, length: int, repo: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    path, commits = repo
    requirement = GitRequirement(url=path.as_uri(), ref=commits[name][:length])
    assert clone(requirement, tmp_path / "out") == commits[name]


def test_a_tag_keeps_its_name_and_no_history_comes(repo: tuple[Path, dict[str, str]], git: Git, tmp_path: Path) -> None:
    tree = prepare(parse_requirement(f"git+{repo[0].as_uri()}@v2.0"), tmp_path / "out")
    assert tree.digest == f"git:{repo[1]['v2.0']}"
    assert tree.name == "repo"
    assert git("out", "describe", "--tags") == "v2.0"
    assert git("out", "rev-list", "--count", "HEAD") == "1"


@pytest.mark.parametrize("ref", ["v1.00", "deadbeef", "0" * 40, "nothing", "refs/heads/none"])
def test_an_unknown_ref(ref: str, repo: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as caught:
        clone(GitRequirement(url=repo[0].as_uri(), ref=ref), tmp_path / "out")
    assert ref in caught.value.message
    assert ("v1.0" in (caught.value.remedy or "")) == (ref == "v1.00")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("url", ["file:///no/such/repo", "https://no-such-host.invalid/repo"])
def test_an_unreachable_repository(url: str, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="ls-remote failed"):
        clone(GitRequirement(url=url, ref="v1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_repository_without_setup_py(git: Git, tmp_path: Path) -> None:
    git("bare", "init", "-q")
    (tmp_path / "bare" / "README").touch()
    git("bare", "add", "-A")
    git("bare", "commit", "-q", "-m", "x")
    with pytest.raises(NoSources, match=r"has no setup\.py"):
        prepare(parse_requirement(f"git+{(tmp_path / 'bare').as_uri()}"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_repository(git: Git, tmp_path: Path) -> None:
    git("empty", "init", "-q")
    with pytest.raises(FetchFailed):
        clone(GitRequirement(url=(tmp_path / "empty").as_uri()), tmp_path / "out")


def test_git_variables_of_a_hook_do_not_lead_astray(
    repo: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "sub" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "sub"))
    assert clone(GitRequirement(url=repo[0].as_uri(), ref="v1.0"), tmp_path / "out") == repo[1]["v1.0"]
    assert (tmp_path / "sub" / "setup.py").read_text() == "sub"


def test_an_interrupted_command_ends_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {marker}; wait"

    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        if marker.exists() and marker.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Stop

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(Stop):
            run_command(["sh", "-c", script], cwd=tmp_path, environment=os.environ)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    # A process that was killed is there until the system has come to end it.
    child, deadline = int(marker.read_text()), time.monotonic() + 10
    while runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
