"""What a worker's URL says."""

import pytest

from router.worker_address import SOCKET_PATH_BYTES_MAX, Scheme, WorkerAddress


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port"),
    [
        ("http://a:8000", "http", "a", 8000),
        ("http://a:8000/", "http", "a", 8000),
        ("a:8000", "http", "a", 8000),
        ("http://a", "http", "a", 80),
        ("HTTP://A:1", "http", "a", 1),
        (" http://10.0.0.1:8000 ", "http", "10.0.0.1", 8000),
        ("http://[::1]:8000", "http", "::1", 8000),
        ("[fd00::2]:8000", "http", "fd00::2", 8000),
        ("https://a:8443", "https", "a", 8443),
        ("HTTPS://a", "https", "a", 443),
        ("https://[::1]", "https", "::1", 443),
    ],
)
def test_urls(url, scheme, host, port):
    address = WorkerAddress.parse(url)
    assert address == WorkerAddress(Scheme(scheme), host, port)
    assert address.is_tls == (scheme == "https")
    assert WorkerAddress.parse(address.url) == address


@pytest.mark.parametrize("url", ["unix:/run/w.sock", "unix:///run/w.sock", " UNIX:/run/w.sock "])
def test_unix_sockets(url):
    address = WorkerAddress.parse(url)
    assert address == WorkerAddress(Scheme.UNIX, "localhost", None, "/run/w.sock")
    assert (address.url, address.id) == ("unix:/run/w.sock", "/run/w.sock")
    assert (address.authority, address.origin) == ("localhost", "http://localhost")
    assert not address.is_tls


def test_what_follows_from_an_address():
    address = WorkerAddress.parse("https://[::1]")
    assert (address.bracketed_host, address.authority, address.id) == ("[::1]", "[::1]:443", "[::1]:443")
    assert (address.url, address.origin) == ("https://[::1]:443", "https://[::1]:443")


def test_the_longest_path_of_a_socket():
    path = "/" + "s" * (SOCKET_PATH_BYTES_MAX - 1)
    assert WorkerAddress.parse(f"unix:{path}").path == path
    with pytest.raises(ValueError, match="at most 107 bytes"):
        WorkerAddress.parse(f"unix:{path}s")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("ftp://a:8000", "expected http://host:port"),
        ("grpc://a", "expected http://host:port"),
        ("", "expected http://host:port"),
        ("zz", "expected http://host:port"),
        ("[::1]", "expected http://host:port"),
        ("http://", "expected http://host:port"),
        ("http://a b:1", "expected http://host:port"),
        ("http://a\x00b", "expected http://host:port"),
        ("http://u:p@a:1", "expected http://host:port"),
        ("http://a:0", "expected http://host:port"),
        ("http://a:99999", "ort"),
        ("http://a:x", "ort"),
        ("http://[::1", "IPv6"),
        ("http://a:8000/v1", "nothing may follow the port"),
        ("https://a:8000?x=1", "nothing may follow the port"),
        ("unix:", "absolute path"),
        ("unix:run/w.sock", "absolute path"),
        ("unix://run/w.sock", "absolute path"),
        ("unix:/run/", "absolute path"),
        ("unix:/run/a b", "absolute path"),
        ("unix:/run/a\nb", "absolute path"),
    ],
)
def test_urls_that_are_refused(url, what):
    with pytest.raises(ValueError, match=what):
        WorkerAddress.parse(url)
