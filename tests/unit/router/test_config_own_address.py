"""A worker's URL that is the gateway's own address: a mistake at the start."""

import pytest

from router.config import ConfigErrors, Settings, load, own_address_in
from router.config.addresses import leads_to


def mistakes_of(*argv):
    with pytest.raises(ConfigErrors) as raised:
        load(argv, {}, lambda path: "")
    return [str(mistake) for mistake in raised.value.mistakes]


@pytest.mark.parametrize(
    ("host", "listening", "leads"),
    [
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.9", "::", True),
        ("localhost", "127.0.0.1", True),
        ("::1", "localhost", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("gateway.example", "gateway.example", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("10.0.0.6", "10.0.0.5", False),
        ("10.0.0.6", "0.0.0.0", False),
        ("0.0.0.0", "10.0.0.5", False),
        ("localhost", "10.0.0.5", False),
    ],
)
def test_addresses_that_surely_lead_to_a_listening_socket(host, listening, leads):
    assert leads_to(host, listening) is leads


def test_its_own_ports_are_no_workers():
    where = ("--host", "0.0.0.0", "--port", "8050", "--admin-port", "8051")
    assert mistakes_of(*where, "--worker-urls", "http://127.0.0.1:8050", "http://localhost:8051") == [
        "--worker-urls: 'http://127.0.0.1:8050' is this gateway's own public port: name engines",
        "--worker-urls: 'http://localhost:8051' is this gateway's own admin port: name engines",
    ]


def test_other_ports_and_ports_that_the_system_chooses_are():
    assert own_address_in("http://127.0.0.1:8052", Settings(port=8050)) == ""
    assert own_address_in("http://127.0.0.1:80", Settings(port=0, admin_port=0)) == ""
    assert own_address_in("unix:/run/worker.sock", Settings(port=8050)) == ""
