"""Prefill and decode workers as users write them, in every source, and the rules that hold for them."""

from pathlib import Path

import pytest

from router.config import Settings, WorkerConfig
from router.config.options import CONNECTORS
from router.config.pool_words import pool_entries
from router.core.disagg import DisaggRules, Mode
from router.hand_over import PROTOCOLS
from tests.unit.router.test_config import mistakes_in_yaml, mistakes_of, settings_of, with_yaml

ROOT = Path(__file__).parents[3]
DECODE = ("--decode", "http://d0:30000")


def prefill(url: str, port: int | None = None, **more: str) -> WorkerConfig:
    return WorkerConfig(url=url, role="prefill", bootstrap_port=port, **more)


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["http://p0:30000"], None),
        (["http://p0:30000", "8998"], 8998),
        (["http://p0:30000,8998"], 8998),
        (["http://p0:30000,bootstrap_port=8998"], 8998),
        (["http://p0:30000,bootstrap-port=8998"], 8998),
        (["http://p0:30000", "none"], None),
        (["http://p0:30000,none"], None),
    ],
)
def test_a_bootstrap_port_is_written_as_other_routers_have_it(words, port):
    settings = settings_of("--prefill", *words, *DECODE)
    assert settings.prefill == (prefill("http://p0:30000", port),)
    assert settings.decode == (WorkerConfig(url="http://d0:30000", role="decode"),)


def test_the_flag_is_repeated_or_takes_several():
    expected = (prefill("http://p0:1", 8998), prefill("http://p1:1"), prefill("http://p2:1", 8999))
    argv = ["--prefill", "http://p0:1", "8998", "http://p1:1", "--prefill", "http://p2:1", "8999"]
    assert settings_of(*argv, *DECODE).prefill == expected
    environ = {"KVGATE_PREFILL": "http://p0:1 8998 http://p1:1 http://p2:1,8999", "KVGATE_DECODE": "d0:1"}
    assert settings_of(environ=environ).prefill == expected


@pytest.mark.parametrize(
    "text",
    [
        "workers: [{url: 'http://p0:1', role: prefill, bootstrap_port: 8998}, 'http://d0:1']",
        "prefill: [{url: 'http://p0:1', bootstrap_port: 8998}]\ndecode: ['http://d0:1']",
        "prefill: 'http://p0:1,8998'\ndecode: 'http://d0:1'",
        "prefill: ['http://p0:1 8998']\ndecode: 'http://d0:1'",
        "prefill: [['http://p0:1', 8998]]\ndecode: 'http://d0:1'",
    ],
)
def test_a_file_has_several_ways_too(text):
    settings = with_yaml(text)
    assert [*settings.workers, *settings.prefill][0] == prefill("http://p0:1", 8998)


def test_toml_says_the_same():
    text = '[[prefill]]\nurl = "http://p0:1"\nbootstrap_port = 8998\n[[decode]]\nurl = "http://d0:1"\n'
    settings = settings_of("--config", "k.toml", files={"k.toml": text})
    assert settings.prefill == (prefill("http://p0:1", 8998),)


def test_other_keys_of_a_worker_stand_behind_its_url():
    settings = settings_of(
        "--kv-connector", "p2p", "--prefill", "http://p0:1,name=p,kv_address=10.0.0.1:21001",
        "--decode", "http://d0:1,connector=nixl,kv_events=tcp://d0:5557",
    )  # fmt: skip
    assert settings.prefill == (prefill("http://p0:1", name="p", kv_address="10.0.0.1:21001"),)
    (decode,) = settings.decode
    assert (decode.connector, decode.kv_events) == ("nixl", "tcp://d0:5557")


def test_the_rules_are_settings():
    settings = settings_of(
        "--disagg", "Auto", "--disagg-min-tokens", "100", "--disagg-ratio", "0.5",
        "--disagg-prefill-busy-tokens", "9", "--disagg-decode-usage-max", "0.9", "--disagg-fallback", "no",
        "--hand-over-lease", "8m",
    )  # fmt: skip
    assert settings.disagg_rules == DisaggRules(
        mode=Mode.AUTO, min_tokens=100, ratio=0.5, prefill_busy_tokens=9, decode_usage_max=0.9, fallback=False
    )
    assert settings.hand_over_lease == 480
    assert Settings().disagg_rules == DisaggRules()


def test_each_pool_has_its_policy():
    settings = settings_of("--prefill-policy", "least-loaded", "--decode-policy", "kv-aware,temperature=0.5")
    assert (settings.prefill_policy, settings.decode_policy) == ("least_loaded", "kv,temperature=0.5")
    (mistake,) = mistakes_of("--decode-policy", "best")
    assert mistake.startswith("--decode-policy: unknown policy 'best'")


def test_connectors_are_protocols():
    assert set(PROTOCOLS) == {*CONNECTORS, "sglang"}


# Mistakes


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            "http://p0:1,http://p1:1",
            "--prefill: 'http://p1:1' behind http://p0:1 must be a bootstrap port or key=value; a further "
            "worker stands behind a blank",
        ),
        ("http://p0:1,name=a,name=b", "--prefill: name is given twice for http://p0:1"),
        (
            "http://p0:1,bootstrp_port=1",
            "--prefill[0].bootstrp_port: unknown (did you mean bootstrap_port?); allowed: url, name, "
            "kv_events, kv_replay, role, bootstrap_port, kv_address, connector, api_key",
        ),
        (
            "http://p0:1,0",
            "--prefill[0].bootstrap_port: must be a whole number from 1 to 65535 or none, not '0'",
        ),
        ("http://p0:1,role=decode", "--prefill[0].role: is prefill here: name other workers elsewhere"),
        (
            "ftp://p0",
            "--prefill[0].url: 'ftp://p0': expected http://host:port, https://host:port or "
            "unix:/path/to.sock",
        ),
        ("http://d0:30000", "--decode[0].url: http://d0:30000 is given twice"),
        ("http://p0:1,kv_address=h:0", "--prefill[0].kv_address: 'h:0' must be host:port, IPv6 in brackets"),
        (
            "http://p0:1,connector=rdma",
            "--prefill[0].connector: must be one of nixl, mooncake, p2p, store, not 'rdma'",
        ),
        (
            "http://p0:1,connector=p2p",
            "--prefill[0].kv_address: is needed for the connector p2p: host:port of the worker's KV socket",
        ),
    ],
)
def test_mistakes_name_their_place(words, what):
    assert mistakes_of("--prefill", words, *DECODE) == [what]


def test_a_decode_worker_has_no_bootstrap_server():
    what = "is for prefill workers, which have a bootstrap server; this one's role is decode"
    assert mistakes_of("--decode", "http://d0:1", "8998") == [f"--decode[0].bootstrap_port: {what}"]
    text = "workers: [{url: 'http://d0:1', role: decode, bootstrap_port: 1}]"
    assert mistakes_in_yaml(text) == [f"k.yaml: workers[0].bootstrap_port: {what}"]


def test_prefill_workers_alone_answer_nothing():
    what = "prefill workers answer no requests: name decode workers too (--decode), or whole ones"
    assert mistakes_of("--prefill", "http://p0:1") == [f"--prefill: {what}"]
    text = "workers: [{url: 'http://p0:1', role: prefill}]"
    assert mistakes_in_yaml(text) == [f"k.yaml: workers: {what}"]
    assert settings_of("--prefill", "http://p0:1", "--worker-urls", "http://w0:1").prefill
    assert settings_of("--decode", "http://d0:1").decode


@pytest.mark.parametrize("flag", ["--pd-disaggregation", "--vllm-pd-disaggregation"])
def test_switches_of_other_routers_are_not_needed(flag):
    assert mistakes_of(flag) == [f"{flag}: unknown flag: leave it out, --prefill and --decode say it"]


def test_words_become_entries():
    entries, mistakes = pool_entries(["a 1 b,x=2", {"url": "c"}, 7])
    assert entries == [
        {"url": "a", "bootstrap_port": "1"},
        {"url": "b", "x": "2"},
        {"url": "c", "bootstrap_port": "7"},
    ]
    assert mistakes == []


def test_the_example_with_pools_loads():
    text = (ROOT / "examples" / "pools.yaml").read_text(encoding="utf-8")
    settings = settings_of("--config", "pools.yaml", files={"pools.yaml": text})
    assert (len(settings.prefill), len(settings.decode)) == (2, 2)
    assert settings.disagg == "conditional"
