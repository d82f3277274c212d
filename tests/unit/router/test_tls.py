"""TLS contexts out of files: what is of no use is said in words, what changes is read anew."""

import contextlib
import logging
import os
import shutil
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from router.tls import (
    ReloadedContext,
    ServerContext,
    TlsFileError,
    connect_failure,
    server_context,
    worker_context,
)
from tests.support.certificates import PairFiles, ca_file, client_context, pair_files


def shown_by(context: ssl.SSLContext, *, host: str | None = "localhost") -> bytes:
    """The certificate that a server with this context shows, by a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def der_of(files: PairFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.cert).read_text())


def encrypt(key: str) -> None:
    loaded = load_pem_private_key(Path(key).read_bytes(), None)
    encrypted = loaded.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
    )
    Path(key).write_bytes(encrypted)


NO_PAIR = "server.pem and .*server.key must hold a certificate and its private key as PEM"


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda files: os.remove(files.cert), "can't read .*server.pem: No such file"),
        (lambda files: os.remove(files.key), "can't read .*server.key: No such file"),
        (
            lambda files: Path(files.cert).write_text("rubbish"),
            NO_PAIR,
        ),
        (lambda files: Path(files.key).write_text(""), NO_PAIR),
        (
            lambda files: (
                pair_files(Path(files.cert).parent, prefix="other")
                and shutil.copy(files.key.replace("server", "other"), files.key)
            ),
            "server.key is not the key of the certificate in .*server.pem",
        ),
        (lambda files: encrypt(files.key), "server.key is encrypted"),
    ],
    ids=["no certificate", "no key", "no PEM", "empty key", "another key", "encrypted"],
)
def test_files_that_are_of_no_use(tmp_path, spoil, what):
    files = pair_files(tmp_path)
    spoil(files)
    with pytest.raises(TlsFileError, match=what):
        server_context(files.cert, files.key)
    with pytest.raises(TlsFileError, match=what):
        worker_context(cert=files.cert, key=files.key)


def test_authorities_that_are_of_no_use(tmp_path):
    with pytest.raises(TlsFileError, match=r"can't read .*: it is a directory"):
        worker_context(ca=str(tmp_path))
    (tmp_path / "ca.pem").write_text("rubbish")
    with pytest.raises(TlsFileError, match=r"ca\.pem must hold certificates as PEM"):
        worker_context(ca=str(tmp_path / "ca.pem"))


def test_workers_are_checked_unless_told_otherwise(tmp_path):
    for context in (worker_context(), worker_context(ca=ca_file(tmp_path))):
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = worker_context(insecure=True)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_both_sides_speak_1_2_or_newer(tmp_path):
    files = pair_files(tmp_path)
    for context in (server_context(files.cert, files.key), worker_context()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("host", ["localhost", None])
def test_a_new_certificate_is_shown_in_new_handshakes(tmp_path, host):
    files = pair_files(tmp_path)
    context = ServerContext(files.cert, files.key)
    old = der_of(files)
    pair_files(tmp_path)
    assert shown_by(context.listening, host=host) == old
    context.check()
    assert shown_by(context.listening, host=host) == der_of(files) != old


def test_a_broken_pair_is_logged_once_and_the_old_one_stays(tmp_path, caplog):
    caplog.set_level(logging.INFO, "kvgate.tls")
    files = pair_files(tmp_path)
    context = ServerContext(files.cert, files.key)
    old = der_of(files)
    new = pair_files(tmp_path, prefix="new")
    shutil.copy(new.cert, files.cert)
    for _ in range(3):
        context.check()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "is not the key of the certificate" in record.getMessage()
    assert shown_by(context.listening) == old
    shutil.copy(new.key, files.key)
    for _ in range(3):
        context.check()
    assert [each.levelname for each in caplog.records] == ["ERROR", "INFO"]
    assert shown_by(context.listening) == der_of(new)


def test_files_that_vanish_for_a_while(tmp_path, caplog):
    files = pair_files(tmp_path)
    context = ServerContext(files.cert, files.key)
    os.remove(files.cert)
    context.check()
    context.check()
    assert len(caplog.records) == 1
    assert shown_by(context.listening)
    pair_files(tmp_path)
    context.check()
    assert shown_by(context.listening) == der_of(files)


def test_files_behind_links_that_are_turned(tmp_path):
    """As Kubernetes renews a mounted secret."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pair_files(tmp_path / name)
    link = tmp_path / "data"
    link.symlink_to("first")
    context = ServerContext(str(link / "server.pem"), str(link / "server.key"))
    turned = tmp_path / "turned"
    turned.symlink_to("second")
    turned.rename(link)
    context.check()
    second = tmp_path / "second"
    assert shown_by(context.listening) == der_of(
        PairFiles(str(second / "server.pem"), str(second / "server.key"))
    )


def test_files_that_stay_are_not_read_again(tmp_path):
    made = []

    def make():
        made.append(None)
        return client_context()

    context = ReloadedContext("x", make, (ca_file(tmp_path), None))
    context.check()
    assert len(made) == 1
    ca_file(tmp_path, trustme.CA())
    context.check()
    assert len(made) == 2


def test_failures_in_words():
    assert connect_failure(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert connect_failure(OSError("no host")) == "no host"
    incoming = ssl.MemoryBIO()
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection = client_context().wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="h")
    with pytest.raises(ssl.SSLError) as raised:
        connection.do_handshake()
    assert connect_failure(raised.value) == "TLS failed: wrong version number"
