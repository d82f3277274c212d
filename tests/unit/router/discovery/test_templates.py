"""Endpoint templates."""

import pytest

from router.discovery.templates import TemplateError, at_rank, fill
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
    ("template", "endpoints"),
    [
        ("tcp://{host}:5557", ["tcp://h:5557", "tcp://h:5558", "tcp://h:5559"]),
        ("tcp://{host}:{port+10}", ["tcp://h:8013", "tcp://h:8014", "tcp://h:8015"]),
        ("tcp://{host}:{5557+10*rank}", ["tcp://h:5557", "tcp://h:5567", "tcp://h:5577"]),
        ("tcp://{host}:{rank*index+5557-rank}", ["tcp://h:5557", "tcp://h:5559", "tcp://h:5561"]),
        ("tcp://{host}:{5557-rank}", ["tcp://h:5557", "tcp://h:5556", "tcp://h:5555"]),
        ("tcp://node-{rank}:5557", ["tcp://node-0:5557", "tcp://node-1:5557", "tcp://node-2:5557"]),
        ("tcp://[::1]:5557", ["tcp://[::1]:5557", "tcp://[::1]:5558", "tcp://[::1]:5559"]),
        ("bind:tcp://*:5600", ["bind:tcp://*:5600", "bind:tcp://*:5601", "bind:tcp://*:5602"]),
        ("ipc:///run/kv-{rank}", ["ipc:///run/kv-0", "ipc:///run/kv-1", "ipc:///run/kv-2"]),
    ],
)
def test_each_rank_has_its_own(template, endpoints):
    endpoint = fill(template, WorkerAddress.parse("h:8003"), index=3)
    assert [at_rank(endpoint, rank) for rank in range(3)] == endpoints


def test_one_socket_is_not_for_several_ranks():
    assert at_rank("ipc:///run/kv", 0) == "ipc:///run/kv"
    with pytest.raises(TemplateError, match=r"'ipc:///run/kv' is one socket for several data-parallel ranks"):
        at_rank("ipc:///run/kv", 1)


def test_ports_end_for_ranks_too():
    assert at_rank("tcp://h:65534", 1) == "tcp://h:65535"
    with pytest.raises(TemplateError, match="a port from 1 to 65535"):
        at_rank("tcp://h:65534", 2)


@pytest.mark.parametrize(
    "template",
    [
        "tcp://{host}:{5557+rank*rank}",
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


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("tcp://*:5760", r"where the engine listens.*expected tcp://\{host\}:5760, or bind:tcp://\*:5760"),
        ("tcp://*:{5600+rank}", "where the engine listens"),
        ("ipc:///" + "d" * 107, "its path has 108 bytes"),
        ("bind:ipc:///" + "é" * 60, "its path has 121 bytes"),
    ],
)
def test_what_no_socket_could_open_is_a_mistake(template, what):
    with pytest.raises(TemplateError, match=what):
        fill(template, WorkerAddress.parse("h:8003"), index=0)
