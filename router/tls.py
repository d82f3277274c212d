"""TLS contexts made of files, and made anew when the files change. Who uses them is said elsewhere.

TLS 1.2 and newer, HTTP/1.1 alone.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Sequence

_logger = logging.getLogger("kvgate.tls")

_NOT_ITS_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


class TlsFileError(OSError):
    """A file of certificates or keys is of no use; the text names it and says why."""


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """What shows this certificate to clients. Raises TlsFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    _load_pair(context, cert, key)
    return context


def worker_context(
    *, ca: str | None = None, cert: str | None = None, key: str | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """What workers are checked with, and shown: `ca` in place of the system's authorities, and a client's
    certificate where they ask for one. `insecure` checks nothing. Raises TlsFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is not None:
        _load_authorities(context, ca)
    else:
        context.load_default_certs()
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context


def connect_failure(error: Exception) -> str:
    """Why connecting failed, in words: what the peer's certificate lacks, or the system's own message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_reason(error)}"
    return getattr(error, "strerror", None) or str(error)


class ReloadedContext:
    """A context and the files that it is made of. `check` is called now and then; connections that are made
    after it saw a change use the new context."""

    def __init__(self, what: str, make: Callable[[], ssl.SSLContext], files: Sequence[str | None]) -> None:
        """`what`: how logs call it. Raises TlsFileError, as `make` does."""
        self._what = what
        self._make = make
        self._files = [file for file in files if file is not None]
        self._stamps = self._look()
        self.context = make()
        """The one in force."""

    def check(self) -> None:
        """Look at the files. Those that are of no use are logged once, and the old context stays."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context = self._make()
        except TlsFileError as error:
            _logger.error("%s: %s; what was loaded before stays in force", self._what, error)
        else:
            _logger.info("%s: loaded anew, for new connections", self._what)

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_stamp(file) for file in self._files]


class ServerContext(ReloadedContext):
    """A server's certificate, which may change while it listens."""

    def __init__(self, cert: str, key: str) -> None:
        super().__init__("certificate for clients", lambda: server_context(cert, key), (cert, key))
        self.listening = self.context
        """What the listener is given, for good: each handshake in it changes to the context in force."""
        self.listening.sni_callback = self._change

    def _change(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        """Called in each handshake, whether or not the client names a host."""
        connection.context = self.context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    for file in (cert, key):
        _open(file)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _Encrypted:
        raise TlsFileError(f"the key in {key} is encrypted: give it without a password") from None
    except ssl.SSLError as error:
        if error.reason in _NOT_ITS_KEY:
            raise TlsFileError(f"{key} is not the key of the certificate in {cert}") from None
        raise TlsFileError(
            f"{cert} and {key} must hold a certificate and its private key as PEM ({_reason(error)})"
        ) from None


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    _open(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsFileError(f"{ca} must hold certificates as PEM ({_reason(error)})") from None


def _open(file: str) -> None:
    """ssl's own errors do not say which file is meant."""
    try:
        os.close(os.open(file, os.O_RDONLY))
        if os.path.isdir(file):
            raise IsADirectoryError(0, "it is a directory")
    except (OSError, ValueError) as error:
        raise TlsFileError(f"can't read {file}: {getattr(error, 'strerror', None) or error}") from None


class _Encrypted(Exception):
    """A password was asked for."""


def _no_password() -> str:
    """Without this OpenSSL asks on the terminal."""
    raise _Encrypted


def _stamp(file: str) -> tuple[int, ...] | None:
    """What differs once a file was written or replaced; None when there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's word for it, which looks like BAD_CERTIFICATE."""
    return (error.reason or str(error)).replace("_", " ").lower()
