"""Workers that are written down: ids, endpoints from templates, and every mistake at once."""

from dataclasses import dataclass

from policies.types import Role
from router.discovery import SOURCES, FleetDefaults, WorkerSpec, expand_workers


@dataclass
class Entry:
    url: str
    name: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    role: str = "both"
    api_key: str | None = None
    bootstrap_port: int | None = None
    kv_address: str | None = None
    connector: str | None = None


def expand(urls=(), entries=(), **fleet):
    named = entries if isinstance(entries, dict) else {"workers": entries}
    return expand_workers(urls, named, FleetDefaults(**fleet))


def test_a_fleet_by_template():
    specs, mistakes = expand(
        ["http://a:8000", "http://b:8001"],
        kv_events="tcp://{host}:{port-2443}",
        kv_replay="tcp://{host}:{6000+index*10}",
        api_key="k",
    )
    assert mistakes == []
    assert specs == [
        WorkerSpec(
            id=f"{host}:{port}",
            url=f"http://{host}:{port}",
            kv_events=f"tcp://{host}:{port - 2443}",
            kv_replay=f"tcp://{host}:{replay}",
            api_key="k",
        )
        for host, port, replay in (("a", 8000, 6000), ("b", 8001, 6010))
    ]


def test_a_workers_own_values_win_and_index_counts_over_all():
    own = Entry("http://b:8000", "b0", "bind:tcp://*:5600", None, "decode", "own")
    rest = Entry("http://c:8000")
    specs, mistakes = expand(["a:1"], [own, rest], kv_events="tcp://{host}:{5557+index}", api_key="fleet")
    assert mistakes == []
    assert [(s.id, s.kv_events, s.role, s.api_key) for s in specs] == [
        ("a:1", "tcp://a:5557", Role.BOTH, "fleet"),
        ("b0", "bind:tcp://*:5600", Role.DECODE, "own"),
        ("c:8000", "tcp://c:5559", Role.BOTH, "fleet"),
    ]


def test_keys_stay_out_of_logs():
    specs, _ = expand(["a:1"], api_key="secret")
    assert "secret" not in repr(specs)


def test_unnamed_workers_are_called_by_their_address():
    specs, mistakes = expand(["a:80", "https://b", "unix:///run/c.sock"])
    assert mistakes == []
    assert [(spec.id, spec.url) for spec in specs] == [
        ("a:80", "http://a:80"),
        ("b:443", "https://b:443"),
        ("/run/c.sock", "unix:/run/c.sock"),
    ]


def test_urls_that_are_refused_have_their_place():
    specs, mistakes = expand(["grpc://a"])
    assert specs == []
    assert mistakes == [
        "worker_urls: 'grpc://a': expected http://host:port, https://host:port or unix:/path/to.sock"
    ]


def test_every_mistake_is_told_at_once():
    specs, mistakes = expand(
        ["a:1", "ftp://b:1", "a:1"],
        [Entry("c:1", "x", role="cook", kv_events="tcp://{prt}:1"), Entry("d:1", "y"), Entry("e:1", "y")],
    )
    assert [spec.id for spec in specs] == ["a:1", "a:1", "y", "y"]
    assert [mistake.split(": ")[0] for mistake in mistakes] == [
        "worker_urls",
        "worker_urls",
        "workers[0].kv_events",
        "workers[0].role",
        "workers[2].name",
    ]
    assert "both, prefill, decode" in mistakes[3]


def test_one_event_endpoint_for_two_workers_is_a_mistake():
    _, mistakes = expand(["a:1", "b:1"], kv_events="tcp://a:5557", kv_replay="tcp://{host}:5558")
    assert mistakes == ["kv_events: tcp://a:5557 serves a:1 too; use {host}, {port} or {index}"]


def test_a_template_that_is_wrong_for_all_is_told_once():
    _, mistakes = expand(["a:1", "b:1"], kv_events="tcp://{host}:{prt}")
    assert len(mistakes) == 1


async def test_the_source_yields_the_whole_set_once():
    specs, _ = expand(["a:1", "b:1"])
    assert [whole async for whole in SOURCES["static"](specs).watch()] == [tuple(specs)]


def test_a_name_is_not_that_of_a_rank():
    specs, mistakes = expand([], [Entry("http://a", name="w@1"), Entry("http://b", name="w@x")])
    assert [spec.id for spec in specs] == ["w@x"]
    assert mistakes == ["workers[0].name: 'w@1' ends like the id of a data-parallel rank (@ and a number)"]


def test_all_lists_are_one_fleet():
    pools = {"workers": [Entry("w:1")], "prefill": [Entry("p:1", role="prefill")], "decode": [Entry("w:1")]}
    specs, mistakes = expand(["a:1"], pools, kv_events="tcp://{host}:{5557+index}")
    assert [spec.kv_events[-4:] for spec in specs] == ["5557", "5558", "5559", "5560"]
    assert mistakes == ["decode[0].url: http://w:1 is given twice"]


def test_how_a_worker_hands_over():
    entries = [
        Entry("p:1", role="prefill", bootstrap_port=8998, kv_address="[fd00::1]:21001"),
        Entry("d:1", role="decode", connector="store"),
    ]
    (p, d), mistakes = expand([], entries, connector="mooncake")
    assert mistakes == []
    assert (p.connector, p.bootstrap_port, p.kv_address) == ("mooncake", 8998, "[fd00::1]:21001")
    assert (d.connector, d.bootstrap_port, d.kv_address) == ("store", None, None)


def test_whole_workers_need_no_kv_address():
    specs, mistakes = expand(["a:1"], [Entry("b:1", role="decode")], connector="p2p")
    assert [spec.id for spec in specs] == ["a:1"]
    assert [mistake.partition(":")[0] for mistake in mistakes] == ["workers[0].kv_address"]
