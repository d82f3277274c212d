"""A worker's address as a value: what its URL says, and what else follows from that.

The relay reaches it through `dialing`, everything else through `engines.sessions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

SOCKET_PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a Unix socket, without the zero that ends it."""

LITERALS_KNOWN_MAX = 4096
"""Hosts of which it is remembered whether they are IP addresses: more than a fleet has workers."""

_EXPECTED = "expected http://host:port, https://host:port or unix:/path/to.sock"


class Scheme(StrEnum):
    HTTP = "http"
    HTTPS = "https"
    UNIX = "unix"
    """HTTP over a Unix socket."""


_DEFAULT_PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Equal addresses are the same worker, however their URLs were spelled."""

    scheme: Scheme
    host: str
    """A name or an IP address, without brackets; `localhost` behind a Unix socket."""
    port: int | None
    """None behind a Unix socket."""
    path: str = ""
    """Of the Unix socket; empty for the others."""

    @classmethod
    def parse(cls, url: str) -> WorkerAddress:
        """`host:port` alone means HTTP; a host alone may be a slip. Raises ValueError that says what is
        wrong."""
        text = url.strip()
        if text.lower().startswith("unix:"):
            return cls(Scheme.UNIX, "localhost", None, _socket_path(url, text[len("unix:") :]))
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError(f"'{url}': {_EXPECTED}")
        scheme = Scheme(parts.scheme)
        try:
            port = _DEFAULT_PORTS[scheme] if parts.port is None else parts.port
        except ValueError as error:
            raise ValueError(f"'{url}': {error}") from None
        host = parts.hostname
        if "://" not in text and parts.port is None:
            raise ValueError(f"'{url}': {_EXPECTED}")
        if not host or not port or not _is_plain(host) or parts.username is not None:
            raise ValueError(f"'{url}': {_EXPECTED}")
        if _goes_on(parts):
            raise ValueError(f"'{url}': nothing may follow the port; requests keep their own paths")
        return cls(scheme, host, port)

    @property
    def url(self) -> str:
        """The one spelling of it."""
        return f"unix:{self.path}" if self.path else f"{self.scheme}://{self.authority}"

    @property
    def id(self) -> str:
        """How a worker without a name is called."""
        return self.path or self.authority

    @property
    def is_tls(self) -> bool:
        return self.scheme is Scheme.HTTPS

    @property
    def is_literal(self) -> bool:
        """Whether the host is an IP address, which nobody need look up."""
        return _is_literal(self.host)

    @property
    def bracketed_host(self) -> str:
        """The host as it stands in URLs."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return self.bracketed_host if self.port is None else f"{self.bracketed_host}:{self.port}"

    @property
    def origin(self) -> str:
        """Where an HTTP client believes to be talking to."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def _socket_path(url: str, path: str) -> str:
    """`unix:///a` is `unix:/a`."""
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/") or path.endswith("/") or not _is_plain(path):
        raise ValueError(f"'{url}': expected unix: and an absolute path without spaces")
    if len(path.encode()) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"'{url}': the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path


@lru_cache(LITERALS_KNOWN_MAX)
def _is_literal(host: str) -> bool:
    """Asked whenever a connection is opened."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_plain(text: str) -> bool:
    """No blanks and no control characters: it goes into headers and logs."""
    return text.isprintable() and " " not in text


def _goes_on(parts: SplitResult) -> bool:
    return parts.path not in ("", "/") or bool(parts.query or parts.fragment)
