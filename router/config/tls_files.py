"""The files that TLS is made of, tried before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router.config.errors import Mistake
from router.config.settings import Settings
from router.tls import TlsFileError, server_context, worker_context


def tls_mistakes(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    """What is missing, unreadable, or does not fit together. `places`: where each option was given."""
    cert, key = settings.tls_cert, settings.tls_key
    yield from _one_alone("tls", cert, key, places)
    if cert is not None and key is not None:
        try:
            server_context(cert, key)
        except TlsFileError as error:
            yield Mistake(places["tls_cert"], str(error))
    yield from _worker_mistakes(settings, places)


def _worker_mistakes(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    ca, cert, key = settings.worker_ca, settings.worker_cert, settings.worker_key
    yield from _one_alone("worker", cert, key, places)
    if ca is not None:
        if settings.worker_insecure:
            yield Mistake(places["worker_ca"], "has no effect with worker_insecure, which checks nothing")
        try:
            worker_context(ca=ca)
        except TlsFileError as error:
            yield Mistake(places["worker_ca"], str(error))
    if cert is not None and key is not None:
        try:
            worker_context(cert=cert, key=key, insecure=True)
        except TlsFileError as error:
            yield Mistake(places["worker_cert"], str(error))


def _one_alone(
    prefix: str, cert: str | None, key: str | None, places: Mapping[str, str]
) -> Iterator[Mistake]:
    if (cert is None) != (key is None):
        given, missing = ("cert", "key") if key is None else ("key", "cert")
        yield Mistake(places[f"{prefix}_{given}"], f"needs {prefix}_{missing} too")
