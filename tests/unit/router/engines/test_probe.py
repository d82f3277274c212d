"""Probing workers: recorded answers of vLLM, answers in SGLang's shape, others, and rubbish."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from policies.types import Role, ServedModel
from router.engines import AnnouncedEvents, ProbeFailed, probe
from router.engines.http import WorkerHttp
from router.engines.sessions import WorkerSessions
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker

RECORDED = Path(__file__).parents[3] / "fixtures" / "http"
ONE_TOKEN = (200, b'{"count":1,"max_model_len":1024,"tokens":[68]}')


@pytest.fixture
async def sessions():
    async with WorkerSessions(system_trust()) as sessions:
        yield sessions


def vllm_answers(version, metrics="metrics.txt", **changed):
    folder = RECORDED / f"vllm-{version}"
    return {
        "GET /v1/models": (200, (folder / "models.json").read_bytes()),
        "GET /version": (200, (folder / "version.json").read_bytes()),
        "GET /metrics": (200, (folder / metrics).read_bytes()),
        "POST /tokenize": ONE_TOKEN,
    } | changed


SGLANG_INFO = (
    b'{"model_path":"org/m","page_size":64,"dp_size":1,"version":"0.5.21","max_total_num_tokens":20480,'
    b'"enable_cache_report":true,"internal_states":[{"page_size":64}],'
    b'"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557}}'
)
SGLANG_MODELS = b'{"object":"list","data":[{"id":"org/m","owned_by":"sglang","max_model_len":32768}]}'


def sglang_answers(**changed):
    return {
        "GET /v1/models": (200, SGLANG_MODELS),
        "GET /server_info": (200, SGLANG_INFO),
        "POST /tokenize": ONE_TOKEN,
    } | changed


async def facts_of(answers, sessions):
    async with FakeWorker(answers) as worker:
        return await probe(WorkerHttp(sessions, worker.url))


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
async def test_a_recorded_vllm_tells_all(version, sessions):
    facts = await facts_of(vllm_answers(version), sessions)
    assert (facts.engine, facts.version) == ("vllm", version)
    assert (facts.block_tokens, facts.num_blocks, facts.num_ranks) == (32, 64, 1)
    assert facts.models[0] == ServedModel("tiny-llama")
    assert facts.offers_tokenize
    assert facts.missing == ()
    assert facts.start_time == pytest.approx(1.79598e9, rel=1e-4)


async def test_adapters_have_their_parent_and_entries_come_as_they_are(sessions):
    facts = await facts_of(vllm_answers("0.32.0"), sessions)
    assert facts.models[1:] == (ServedModel("alpha", "tiny-llama"), ServedModel("beta", "tiny-llama"))
    assert [entry["id"] for entry in facts.model_entries] == ["tiny-llama", "alpha", "beta"]
    assert facts.model_entries[0]["permission"][0]["allow_sampling"] is True


async def test_data_parallel_ranks_are_counted(sessions):
    facts = await facts_of(vllm_answers("0.32.0", "metrics_dp2.txt"), sessions)
    assert (facts.num_ranks, facts.num_blocks, facts.rank_problem) == (2, 128, "")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.12.0", ""),
        ("0.12.0rc1", ""),
        ("1.0", ""),
        ("0.11.2", "vLLM 0.11.2 lets nobody choose one (0.12.0 and newer do)"),
        ("dev", "vLLM dev lets nobody choose one"),
    ],
)
async def test_whether_a_vllm_can_be_told_a_rank_is_a_matter_of_its_release(version, problem, sessions):
    answer = (200, b'{"version":"%s"}' % version.encode())
    facts = await facts_of(vllm_answers("0.32.0", "metrics_dp2.txt", **{"GET /version": answer}), sessions)
    assert facts.rank_problem.startswith(problem)
    assert bool(facts.rank_problem) == bool(problem)


async def test_ranks_that_do_not_count_from_0_cannot_be_named(sessions):
    metrics = (RECORDED / "vllm-0.32.0" / "metrics_dp2.txt").read_bytes()
    metrics = metrics.replace(b'engine="0"', b'engine="2"').replace(b'engine="1"', b'engine="3"')
    facts = await facts_of(vllm_answers("0.32.0", **{"GET /metrics": (200, metrics)}), sessions)
    assert (facts.num_ranks, facts.rank_problem) == (2, "it numbers them 2, 3 instead of from 0")


async def test_keys_go_with_every_call(sessions):
    async with FakeWorker(vllm_answers("0.32.0")) as worker:
        await probe(WorkerHttp(sessions, worker.url, {"authorization": "Bearer k"}))
        assert {headers.get("authorization") for _, _, headers, _ in worker.requests} == {"Bearer k"}


async def test_vllm_without_metrics_is_known_by_its_signature(sessions):
    facts = await facts_of(vllm_answers("0.32.0", **{"GET /metrics": (404, b"")}), sessions)
    assert (facts.engine, facts.block_tokens, facts.num_blocks, facts.start_time) == (
        "vllm",
        None,
        None,
        None,
    )
    assert any("block size" in what for what in facts.missing)
    assert any("KV capacity" in what for what in facts.missing)
    assert any("start time" in what for what in facts.missing)


async def test_vllm_under_another_owner_is_known_by_its_metrics(sessions):
    models = (200, b'{"data":[{"id":"m","owned_by":"us"}]}')
    facts = await facts_of(vllm_answers("0.32.0", **{"GET /v1/models": models}), sessions)
    assert facts.engine == "vllm"


@pytest.mark.parametrize("num_blocks", ["None", "0", "-1", "", "many"])
async def test_a_capacity_that_is_none_is_missing(num_blocks, sessions):
    metrics = (RECORDED / "vllm-0.32.0" / "metrics.txt").read_bytes()
    metrics = metrics.replace(b'num_gpu_blocks="64"', b'num_gpu_blocks="%s"' % num_blocks.encode())
    facts = await facts_of(vllm_answers("0.32.0", **{"GET /metrics": (200, metrics)}), sessions)
    assert facts.num_blocks is None
    assert any("KV capacity" in what for what in facts.missing)


async def test_prefix_caching_that_is_off_is_said(sessions):
    metrics = (RECORDED / "vllm-0.32.0" / "metrics.txt").read_bytes()
    metrics = metrics.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')
    facts = await facts_of(vllm_answers("0.32.0", **{"GET /metrics": (200, metrics)}), sessions)
    assert facts.missing == ("prefix caching (it is off)",)


@pytest.mark.parametrize("answer", [(404, b""), (405, b""), (500, b""), (200, b"[]"), (200, b'{"tokens"')])
async def test_tokenization_that_does_not_work_is_not_offered(answer, sessions):
    facts = await facts_of(vllm_answers("0.32.0", **{"POST /tokenize": answer}), sessions)
    assert not facts.offers_tokenize
    assert facts.missing[0].startswith("tokenization (/tokenize answered")


@pytest.mark.parametrize("path", ["GET /server_info", "GET /get_server_info"])
async def test_sglang_tells_all_under_either_path(path, sessions):
    answers = sglang_answers()
    answers[path] = answers.pop("GET /server_info")
    facts = await facts_of(answers, sessions)
    assert (facts.engine, facts.version) == ("sglang", "0.5.21")
    assert (facts.block_tokens, facts.num_blocks, facts.num_ranks) == (64, 320, 1)
    assert facts.missing == ()


def announcing(version="0.5.23", **events):
    info = {"internal_states": [], "version": version, "page_size": 64, "max_total_num_tokens": 6400}
    return sglang_answers(**{"GET /server_info": (200, msgspec.json.encode(info | {"kv_events": events}))})


async def test_sglang_announces_its_publisher(sessions):
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
              "block_size": 128, "dp_size": 2, "replay_endpoint_port_base": 5601}  # fmt: skip
    facts = await facts_of(announcing(**events), sessions)
    assert facts.announced_events == AnnouncedEvents(host="", port=5557, replay_port=5601, topic="kv")
    assert (facts.num_ranks, facts.rank_problem) == (2, "")
    assert (facts.block_tokens, facts.num_blocks) == (128, 50)  # its events' blocks, not its pages


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]", "::", "10.0.0.9"])
async def test_an_announced_host_that_is_any_is_the_workers_own(host, sessions):
    facts = await facts_of(announcing(endpoint_host=host, endpoint_port_base=5557), sessions)
    assert facts.announced_events.host == (host if host == "10.0.0.9" else "")
    assert facts.announced_events.replay_port is None


@pytest.mark.parametrize(
    "events", [{}, {"endpoint_port_base": "x"}, {"publisher": "null", "endpoint_port_base": 1}]
)
async def test_an_announcement_that_is_none_leaves_the_rest(events, sessions):
    facts = await facts_of(announcing(**events), sessions)
    assert (facts.engine, facts.announced_events, facts.block_tokens) == ("sglang", None, 64)


async def test_sglang_before_0_5_10_cannot_be_told_a_rank(sessions):
    facts = await facts_of(announcing("0.5.9", endpoint_port_base=5557, dp_size=2), sessions)
    assert facts.rank_problem == "SGLang 0.5.9 lets nobody choose one (0.5.10 and newer do)"


@pytest.mark.parametrize(
    ("told", "role", "port"),
    [
        ({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998}, Role.PREFILL, 8998),
        ({"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998}, Role.DECODE, 8998),
        ({"disaggregation_mode": "null", "disaggregation_bootstrap_port": 8998}, Role.BOTH, 8998),
        ({"disaggregation_mode": None}, None, None),
        ({"disaggregation_mode": "encode"}, None, None),
        ({}, None, None),
    ],
)
@pytest.mark.parametrize("path", ["GET /server_info", "GET /get_server_info"])
async def test_sglang_tells_its_part(path, told, role, port, sessions):
    info = {"internal_states": [], "version": "0.5.23", "page_size": 64} | told
    answers = sglang_answers(**{path: (200, msgspec.json.encode(info))})
    if path != "GET /server_info":
        del answers["GET /server_info"]
    facts = await facts_of(answers, sessions)
    assert (facts.engine, facts.role, facts.bootstrap_port) == ("sglang", role, port)


async def test_vllm_does_not_tell_its_part(sessions):
    facts = await facts_of(vllm_answers("0.32.0"), sessions)
    assert (facts.role, facts.bootstrap_port) == (None, None)


async def test_sglang_that_tells_little(sessions):
    info = (200, b'{"internal_states":[],"page_size":null,"dp_size":4,"enable_cache_report":false}')
    facts = await facts_of(
        sglang_answers(**{"GET /server_info": info, "POST /tokenize": (404, b"")}), sessions
    )
    assert (facts.block_tokens, facts.num_blocks, facts.num_ranks) == (None, None, 4)
    assert len(facts.missing) == 5


async def test_another_server_is_generic(sessions):
    facts = await facts_of({"GET /v1/models": (200, b'{"data":[{"id":"m"}]}')}, sessions)
    assert (facts.engine, facts.models) == ("generic", (ServedModel("m"),))
    assert "block size" in facts.missing


async def test_a_server_of_which_only_the_health_is_known(sessions):
    facts = await facts_of({"GET /health": (200, b"")}, sessions)
    assert (facts.engine, facts.models) == ("generic", ())
    assert facts.missing[0] == "a list of models"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"<html>"), "rubbish"),
        ((200, b'{"data":[1]}'), "rubbish"),
        ((200, b"\xff\xfe"), "rubbish"),
        ((200, b"[" * 100_000), "rubbish"),
        ((200, b'{"data":"' + b"x" * 5_000_000 + b'"}'), "more than"),
        ((401, b""), "API key"),
        ((503, b""), "not ready"),
        ((404, b""), "neither /v1/models nor /health"),
        (None, "/v1/models failed"),
    ],
)
async def test_what_cannot_be_served_says_why(answer, reason, sessions):
    with pytest.raises(ProbeFailed, match=reason):
        await facts_of({"GET /v1/models": answer}, sessions)


async def test_entries_without_a_name_are_left_out(sessions):
    models = (200, b'{"data":[{"id":7},{"object":"model"},{"id":""},{"id":"m","parent":""}]}')
    facts = await facts_of({"GET /v1/models": models}, sessions)
    assert facts.models == (ServedModel("m"),)


async def test_a_server_that_is_down(sessions, unused_tcp_port):
    with pytest.raises(ProbeFailed, match="cannot connect: "):
        await probe(WorkerHttp(sessions, f"http://127.0.0.1:{unused_tcp_port}"))


async def test_a_server_that_hangs_is_given_up(sessions):
    released = asyncio.Event()

    async def hang(body):
        await released.wait()
        return 200, b"{}"

    async with FakeWorker({"GET /v1/models": hang}) as worker:
        with pytest.raises(ProbeFailed, match=r"within 0\.05 s"):
            await probe(WorkerHttp(sessions, worker.url, timeout_seconds=0.05))
        released.set()
