import pytest

from policies.types import Transfer
from router.hand_over.base import transfer_host
from tests.support.columns import make_worker


@pytest.mark.parametrize(
    ("url", "transfer", "host"),
    [
        ("http://10.0.0.1:8000", None, "10.0.0.1"),
        ("http://10.0.0.1:8000", Transfer(protocol="sglang"), "10.0.0.1"),
        ("http://prefill-0.pool:8000", Transfer(protocol="sglang"), "prefill-0.pool"),
        ("http://[fd00::1]:8000", Transfer(protocol="sglang"), "[fd00::1]"),
        ("http://10.0.0.1:8000", Transfer(protocol="p2p", host="192.168.7.1"), "192.168.7.1"),
        ("http://10.0.0.1:8000", Transfer(protocol="p2p", host="fd00::2"), "[fd00::2]"),
        ("http://10.0.0.1:8000", Transfer(protocol="p2p", host="[fd00::2]"), "[fd00::2]"),
    ],
)
def test_a_host_is_the_configured_one_or_the_urls_with_ipv6_in_brackets(url, transfer, host):
    assert transfer_host(make_worker("w", url=url, transfer=transfer)) == host
