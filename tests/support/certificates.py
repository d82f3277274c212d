"""Certificates made for the tests: an authority, and files that hold what it vouches for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme

from router.tls import ReloadedContext, worker_context


@dataclass(frozen=True)
class PairFiles:
    """A certificate and its key, as PEM files."""

    cert: str
    key: str


@cache
def authority() -> trustme.CA:
    """The one whom the tests trust; the system does not."""
    return trustme.CA()


def ca_file(directory: Path, ca: trustme.CA | None = None) -> str:
    file = directory / "ca.pem"
    (ca or authority()).cert_pem.write_to_path(file)
    return str(file)


def pair_files(
    directory: Path, *names: str, prefix: str = "server", ca: trustme.CA | None = None
) -> PairFiles:
    """A new certificate for these hosts, in files whose names begin with `prefix`, over what was there."""
    issued = (ca or authority()).issue_cert(*(names or ("localhost", "127.0.0.1", "::1")))
    files = PairFiles(str(directory / f"{prefix}.pem"), str(directory / f"{prefix}.key"))
    Path(files.cert).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    return files


@cache
def client_context(*protocols: str) -> ssl.SSLContext:
    """What checks a server of our authority, and offers these protocols (ALPN)."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    context.set_alpn_protocols(protocols)
    return context


@cache
def system_trust() -> ReloadedContext:
    """What workers are checked with where a test is not about TLS."""
    return ReloadedContext("workers", worker_context, ())


def worker_trust(directory: Path, client: PairFiles | None = None) -> ReloadedContext:
    """What checks workers of our authority, and shows `client` to them."""
    ca = ca_file(directory)
    cert, key = (client.cert, client.key) if client is not None else (None, None)
    return ReloadedContext("workers", lambda: worker_context(ca=ca, cert=cert, key=key), ())
