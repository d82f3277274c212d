"""Endpoint templates."""

import pytest

from router.discovery.templates import TemplateError, fill
from router.worker_address import WorkerAddress


@pytest.mark.parametrize(
    ("template", "endpoint"),
    [
        ("tcp://{host}:5557", "tcp://h:5557"),
        ("tcp://{host}:{port}", "tcp://h:8003"),
        ("tcp://{host}:{port+1000}", "tcp://h:9003"),
        ("tcp://{host}:{port - 2500}", "tcp://h:5503"),
        ("tcp://{host}:{5557+index}", "tcp://h:5560"),
        ("tcp://{host}:{index*10+5557}", "tcp://h:5587"),
        ("tcp://{ host }:{ 5557 + 2 * index - 1 }", "tcp://h:5562"),
        ("tcp://{host}:{port-index*2}", "tcp://h:7997"),
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("bind:tcp://*:{5600+index}", "bind:tcp://*:5603"),
        ("ipc:///run/kv-{index}", "ipc:///run/kv-3"),
        ("tcp://[::1]:5557", "tcp://[::1]:5557"),
    ],
)
def test_filled_in(template, endpoint):
    assert fill(template, WorkerAddress.parse("h:8003"), index=3) == endpoint


def test_an_ipv6_host():
    assert fill("tcp://{host}:5557", WorkerAddress.parse("[::1]:1"), index=0) == "tcp://[::1]:5557"


def test_a_worker_behind_a_unix_socket_is_on_this_host_and_has_no_port():
    address = WorkerAddress.parse("unix:/run/w.sock")
    assert fill("tcp://{host}:{5557+index}", address, index=2) == "tcp://localhost:5559"
    with pytest.raises(TemplateError, match="a worker behind a Unix socket has no port"):
        fill("tcp://{host}:{port+1}", address, index=2)


@pytest.mark.parametrize(
    "template",
    [
        "tcp://{host}:{prt}",
        "tcp://{host}:{}",
        "tcp://{host}:{port+}",
        "tcp://{host}:{+1}",
        "tcp://{host}:{port*}",
        "tcp://{host}:{port/2}",
        "tcp://{host}:{host+1}",
        "tcp://{host}:{port(1)}",
        "tcp://{host}:{port 1}",
        "tcp://{host}:{__import__}",
        "tcp://{host}:{port",
        "tcp://{host}:port}",
        "tcp://{host}",
        "tcp://{host}:{port-9000}",
        "tcp://{host}:{port*100}",
        "tcp://:5557",
        "tcp://::1:5557",
        "http://{host}:5557",
        "{host}:5557",
        "",
    ],
)
def test_refused(template):
    with pytest.raises(TemplateError):
        fill(template, WorkerAddress.parse("h:8003"), index=3)
