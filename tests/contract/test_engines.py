"""What every row of the engines' table must do."""

import pytest
from msgspec import Raw, json

from router.engines import ENGINES, EngineGauges
from router.engines.facts import ModelList
from router.engines.gauges import read_gauges
from router.engines.http import WorkerHttp
from router.engines.sessions import WorkerSessions
from router.wire.endpoints import Protocol
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker

RUBBISH = [(200, b""), (200, b"null"), (200, b"[]"), (200, b"\xff"), (200, b"{" * 10_000), (500, b"{}"), None]
PATHS = ["GET /" + name for name in ("version", "metrics", "health", "server_info", "get_server_info")]


@pytest.mark.parametrize("answer", RUBBISH)
@pytest.mark.parametrize("owner", ["", "vllm", "sglang"])
@pytest.mark.parametrize("name", ENGINES)
async def test_rubbish_gives_facts_with_gaps_or_none(name, owner, answer):
    models = ModelList([{"id": "m", "owned_by": owner}] if owner else [])
    async with (
        FakeWorker(dict.fromkeys([*PATHS, "POST /tokenize"], answer)) as worker,
        WorkerSessions(system_trust()) as sessions,
    ):
        facts = await ENGINES[name].probe(WorkerHttp(sessions, worker.url), models)
    if facts is not None:
        assert facts.engine == name
        assert (facts.block_tokens, facts.num_blocks) == (None, None)
        assert (facts.role, facts.bootstrap_port) == (None, None)
        assert not facts.offers_tokenize
        assert facts.missing


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("name", ENGINES)
def test_a_request_for_tokens_names_the_model_or_is_none(name, protocol):
    prompt = {"messages": Raw(b"[]"), "prompt": Raw(b'"x"'), "text": Raw(b'"x"')}
    request = ENGINES[name].tokenize_request(protocol, prompt, 'odd "name"')
    assert request is None or json.decode(request)["model"] == 'odd "name"'


@pytest.mark.parametrize("name", ENGINES)
def test_gauges_of_nothing_are_unknown(name):
    gauges = EngineGauges.over(read_gauges(b"", ENGINES[name].gauges).values())
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (None, None, None)
