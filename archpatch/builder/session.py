"""HTTP as pip's settings want it, for unearth: every failure is raised, none is taken for an empty index."""

from __future__ import annotations

import logging
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from unearth.auth import MultiDomainBasicAuth
from unearth.collector import SUPPORTED_CONTENT_TYPES
from unearth.fetchers import PyPIClient

from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import redact_url
from archpatch.errors import ConfigError, FetchFailed

__all__ = ["IndexSession"]

# unearth warns of every page that is not there; with no handler at all, Python would print that.
logging.getLogger("unearth").addHandler(logging.NullHandler())

#: The same as pip's.
_RETRY_STATUSES = (500, 502, 503, 520, 524)
_FIRST_DELAY = 0.25

_NOT_THERE = (404, 410)
_DENIED = (401, 403, 407)
_FIRST_ERROR = 400

_T = TypeVar("_T")


class _Transient(Exception):
    """A failure that another attempt may not have."""


class IndexSession:
    """What unearth fetches pages with (its `Fetcher` protocol), and `download` archives.

    Raises `FetchFailed` where unearth would take an unreachable index for one without the package.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._client = _open_client(settings)

    def __enter__(self) -> IndexSession:  # noqa: PYI034 - typing has Self from Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Return an index page; a page that is not there (404) is returned as such."""
        response = self.retry(url, lambda: self._page(url, headers))
        content_type = response.headers.get("Content-Type", "nothing that it names")
        if response.status_code in _NOT_THERE or content_type.lower().startswith(SUPPORTED_CONTENT_TYPES):
            return response
        raise FetchFailed(
            f"{redact_url(url)} is no package index: it answers with {content_type}",
            remedy="Check pip's index-url and find-links (`python -m pip config list`).",
        )

    def head(self, url: str, *, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Return the headers of `url`: unearth asks whether a URL that looks like an archive is a page."""

        def attempt() -> httpx2.Response:
            with _named_failures(url):
                return self._client.head(url, headers=headers)

        return self.retry(url, attempt)

    def get_stream(
        self, url: str, *, headers: Mapping[str, str] | None = None
    ) -> AbstractContextManager[httpx2.Response]:
        """Open `url` for reading in pieces."""
        return self._client.get_stream(url, headers=headers)

    def stream(self, url: str, size: int) -> Iterator[bytes]:
        """Yield the body of `url` as it was sent, in pieces of at most `size` bytes.

        Raises `_Transient` and `FetchFailed`; a body shorter than its announced length is `_Transient`.
        """
        # A server that takes .tar.gz for gzip-encoded tar would else have it unpacked on the way, and the hash differ.
        headers = {"Accept-Encoding": "identity"}
        with _named_failures(url), self.get_stream(url, headers=headers) as response:
            _check_status(url, response)
            yield from response.iter_raw(size)

    def iter_secure_origins(self) -> Iterable[tuple[str, str, str]]:
        """Yield (scheme, host, port) of what may be read without TLS: this machine and pip's trusted hosts."""
        return self._client.iter_secure_origins()

    def retry(self, url: str, attempt: Callable[[], _T]) -> _T:
        """Return what `attempt` does, tried as often as pip's `retries` says; raises `FetchFailed`."""
        for number in range(self._settings.retries):
            try:
                return attempt()
            except _Transient:  # noqa: PERF203 - a request takes longer than a try
                time.sleep(_FIRST_DELAY * 2**number)
        try:
            return attempt()
        except _Transient as error:
            raise _unreachable(url, str(error)) from None

    def _page(self, url: str, headers: Mapping[str, str] | None) -> httpx2.Response:
        with _named_failures(url):
            response = self._client.get(url, headers=headers)
        if response.status_code not in _NOT_THERE:
            _check_status(url, response)
        return response


@contextmanager
def _named_failures(url: str) -> Iterator[None]:
    """Tell the client's failures apart by whether another attempt may help."""
    try:
        yield
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx2.UnsupportedProtocol) or "CERTIFICATE_VERIFY_FAILED" in reason:
            raise _unreachable(url, reason) from None
        raise _Transient(reason) from None
    except (httpx2.RequestError, httpx2.InvalidURL) as error:
        raise _unreachable(url, str(error)) from None


def _check_status(url: str, response: httpx2.Response) -> None:
    status = response.status_code
    if status in _RETRY_STATUSES:
        raise _Transient(f"it answers {status} {response.reason_phrase}")
    if status >= _FIRST_ERROR:
        raise _unreachable(url, f"it answers {status} {response.reason_phrase}", denied=status in _DENIED)


def _unreachable(url: str, reason: str, *, denied: bool = False) -> FetchFailed:
    if denied:
        remedy = "Check the user and password in pip's index-url, in ~/.netrc or in keyring, and the proxy's."
    else:
        remedy = "Check the network and pip's index-url, proxy, cert and trusted-host (`python -m pip config list`)."
    return FetchFailed(f"{redact_url(url)} cannot be fetched: {redact_url(reason)}", remedy=remedy)


# --- the client --------------------------------------------------------------------------------


def _open_client(settings: IndexSettings) -> PyPIClient:
    try:
        return PyPIClient(
            trusted_hosts=settings.trusted_hosts,
            verify=_context(settings),
            proxy=settings.proxy,
            timeout=settings.timeout,
            follow_redirects=True,
            auth=MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls),
            mounts=_trusted_mounts(settings),
        )
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        raise ConfigError(
            f"a proxy or trusted host of pip's settings cannot be used: {redact_url(str(error))}",
            remedy="See `python -m pip config list` and HTTPS_PROXY; SOCKS proxies need the socksio package.",
        ) from error


def _context(settings: IndexSettings) -> ssl.SSLContext:
    try:
        if settings.cert is None:
            context = httpx2.create_ssl_context()
        elif Path(settings.cert).is_dir():
            context = ssl.create_default_context(capath=settings.cert)
        else:
            context = ssl.create_default_context(cafile=settings.cert)
        return _with_client_cert(context, settings)
    except OSError as error:
        raise ConfigError(
            f"pip's cert or client-cert cannot be read: {error}",
            remedy=f"cert is {settings.cert}, client-cert is {settings.client_cert}; see `python -m pip config list`.",
        ) from None


def _with_client_cert(context: ssl.SSLContext, settings: IndexSettings) -> ssl.SSLContext:
    if settings.client_cert is not None:
        context.load_cert_chain(settings.client_cert)
    return context


def _trusted_mounts(settings: IndexSettings) -> dict[str, httpx2.HTTPTransport]:
    """Return transports for pip's trusted hosts; unearth's own would pass by the proxy and the client certificate."""
    mounts = {}
    for host in settings.trusted_hosts:
        context = _with_client_cert(httpx2.create_ssl_context(verify=False), settings)
        mounts[f"all://{host}"] = httpx2.HTTPTransport(verify=context, proxy=settings.proxy or _environment_proxy(host))
    return mounts


def _environment_proxy(host: str) -> str | None:
    name = urlsplit(f"//{host}").hostname or host
    if urllib.request.proxy_bypass(name):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get("https") or proxies.get("http") or proxies.get("all")
