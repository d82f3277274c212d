"""Configuration of TLS: files that are missing, do not fit or make no sense join the list of mistakes."""

import pytest

from router.config import ConfigErrors, Settings, load
from router.config.options import BY_NAME, flag_of, variable_of
from tests.support.certificates import ca_file, pair_files


def settings_of(*argv, environ=None):
    return load([str(word) for word in argv], environ or {}, lambda path: "")


def mistakes_of(*argv):
    with pytest.raises(ConfigErrors) as raised:
        settings_of(*argv)
    return [str(mistake) for mistake in raised.value.mistakes]


@pytest.fixture
def files(tmp_path):
    return pair_files(tmp_path)


def test_nothing_is_set_by_default():
    assert (Settings().tls_cert, Settings().worker_ca, Settings().worker_insecure) == (None, None, False)


@pytest.mark.parametrize("cert", BY_NAME["tls_cert"].names)
@pytest.mark.parametrize("key", BY_NAME["tls_key"].names)
def test_names_of_other_servers_are_taken(files, cert, key):
    by_flag = settings_of(flag_of(cert), files.cert, flag_of(key), files.key)
    assert (by_flag.tls_cert, by_flag.tls_key) == (files.cert, files.key)
    assert settings_of(environ={variable_of(cert): files.cert, variable_of(key): files.key}) == by_flag


def test_one_of_two(files):
    assert mistakes_of("--tls-cert", files.cert, "--worker-key", files.key) == [
        "--tls-cert: needs tls_key too",
        "--worker-key: needs worker_cert too",
    ]


def test_pairs_that_do_not_fit_stand_beside_all_else(tmp_path, files):
    other = pair_files(tmp_path, prefix="other")
    assert mistakes_of(
        "--ssl-certfile", files.cert, "--ssl-keyfile", other.key,
        "--worker-cert", tmp_path / "none.pem", "--worker-key", files.key,
        "--worker-ca", files.key, "--worker-urls", "ftp://a",
    ) == [
        f"--ssl-certfile: {other.key} is not the key of the certificate in {files.cert}",
        f"--worker-ca: {files.key} must hold certificates as PEM (no certificate or crl found)",
        f"--worker-cert: can't read {tmp_path / 'none.pem'}: No such file or directory",
        "--worker-urls: 'ftp://a': expected http://host:port, https://host:port or unix:/path/to.sock",
    ]  # fmt: skip


def test_an_authority_that_is_not_asked_is_a_mistake(tmp_path):
    assert mistakes_of("--worker-ca", ca_file(tmp_path), "--worker-insecure") == [
        "--worker-ca: has no effect with worker_insecure, which checks nothing"
    ]


def test_all_at_once(tmp_path, files):
    settings = settings_of(
        "--tls-cert", files.cert, "--tls-key", files.key, "--worker-ca", ca_file(tmp_path),
        "--worker-cert", files.cert, "--worker-key", files.key,
    )  # fmt: skip
    assert (settings.worker_cert, settings.worker_insecure) == (files.cert, False)
