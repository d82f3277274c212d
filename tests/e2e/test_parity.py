"""What goes wrong silently elsewhere is said here: workers whose tokens, blocks or events are not ours."""

from __future__ import annotations

import itertools
import logging

import msgspec
import pytest

import loadgen.mock_http
import router.core.parity
import router.fleet.token_parity
from loadgen.mock_api import TokenizeBody, tokens_of
from loadgen.mock_worker import MockFleet
from loadgen.tokenizer import BOS, MESSAGE_END
from router.config import WorkerConfig
from router.tokens.probe import PROBES
from router.wire.endpoints import Protocol
from tests.support.serving import FAST, counted, row_of, serving, trust_of, with_events
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def impatience(monkeypatch) -> None:
    """Between two looks and for events that do not come: this fleet is quick."""
    monkeypatch.setattr(router.core.parity, "PARITY_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(router.core.parity, "PARITY_SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(router.fleet.token_parity, "TOKEN_PARITY_SECONDS", 0.05)
    monkeypatch.setattr(router.fleet.token_parity, "TOKEN_PARITY_RETRY_SECONDS", 0.05)


@pytest.fixture
async def mocks():
    async with MockFleet(1, engine=FAST, adapters=["a1"]) as fleet:
        yield fleet.workers


TURNS = itertools.count()


def words(name: str, num: int = 60) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


def checked(gateway, check: str, result: str) -> float:
    return counted(gateway, "kvgate_parity_checks_total", check=check, result=result)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def send_until(client, condition, *, what: str, **body) -> None:
    """New prompts, one after another, until the gateway has seen enough."""
    for _ in range(40):
        if condition():
            return
        before = sum(checked(client.gateway, "blocks", result) for result in ("agree", "differ", "skipped"))
        fields = {"model": "mock", "prompt": words(f"p{next(TURNS)}-"), "max_tokens": 1} | body
        status, answer, _ = await client.post("/v1/completions", fields)
        assert status == 200, answer
        await eventually(
            lambda before=before: (
                sum(checked(client.gateway, "blocks", result) for result in ("agree", "differ", "skipped"))
                > before
            ),
            what="the prompt was followed",
        )
    assert condition(), what


def retokenized(monkeypatch, change) -> None:
    """The gateway is told other tokens than those on which the engine computes."""
    monkeypatch.setattr(loadgen.mock_http, "tokens_of", lambda body: change(tokens_of(body)))


async def test_blocks_that_agree_leave_a_worker_exact(mocks, caplog) -> None:
    async with serving(with_events(mocks)) as client:
        gateway = client.gateway
        await send_until(client, lambda: checked(gateway, "blocks", "agree") >= 2, what="blocks agree")
        await client.complete(words("again"))
        await client.complete(words("again"))
        await eventually(lambda: checked(gateway, "cached", "agree") > 0, what="cached tokens agree")
        assert checked(gateway, "blocks", "differ") == checked(gateway, "cached", "differ") == 0
        assert row_of(gateway, "w0")["parity"]["warning"] is None
    assert not warnings(caplog)


async def test_a_missing_bos_is_named_degrades_and_is_mended(mocks, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, "kvgate.fleet")
    retokenized(monkeypatch, lambda ids: ids[1:])
    async with serving(with_events(mocks)) as client:
        gateway = client.gateway
        await send_until(client, lambda: trust_of(gateway, "w0") == "degraded", what="degraded")
        cause = f"the worker's prompt starts with token {BOS}, ours does not"
        assert row_of(gateway, "w0")["trust"]["reason"] == cause
        assert row_of(gateway, "w0")["parity"]["warning"] == cause
        assert counted(gateway, "kvgate_parity_differs", worker="w0", check="blocks") == 1
        await eventually(lambda: f"worker w0: its index is degraded: {cause}" in warnings(caplog))
        monkeypatch.setattr(loadgen.mock_http, "tokens_of", tokens_of)
        await send_until(client, lambda: trust_of(gateway, "w0") == "exact", what="raised again")
        await eventually(
            lambda: any("w0: its index is exact again" in r.getMessage() for r in caplog.records),
            what="it is said",
        )
        await client.complete(words("p1"), x_request_id="last")
        _, explained = await client.admin("/explain?request_id=last")
        assert explained["decisions"][0]["trust"] == "exact"
    assert len(warnings(caplog)) == 1


async def test_while_degraded_the_bridge_still_counts(mocks, monkeypatch) -> None:
    retokenized(monkeypatch, lambda ids: ids[1:])
    async with serving(with_events(mocks), bridge_ttl=60.0) as client:
        await send_until(client, lambda: trust_of(client.gateway, "w0") == "degraded", what="degraded")
        await client.complete(words("again"))
        await client.complete(words("again"), x_request_id="again")
        _, explained = await client.admin("/explain?request_id=again")
        decision = explained["decisions"][0]
        assert decision["trust"] == "degraded"
        assert decision["details"]["exact_blocks"] == 0
        assert decision["expected_cached_tokens"] > 0


async def test_another_chat_template_is_named(mocks, caplog, monkeypatch) -> None:
    retokenized(monkeypatch, lambda ids: [ids[0], MESSAGE_END, *ids[1:]])
    async with serving(with_events(mocks)) as client:
        await send_until(client, lambda: trust_of(client.gateway, "w0") == "degraded", what="degraded")
        assert "tokenizer or chat template" in row_of(client.gateway, "w0")["trust"]["reason"]
        await eventually(lambda: warnings(caplog), what="it is said")
    assert len(warnings(caplog)) == 1


class Tokenizer:
    """A token source that knows the tokens of a probe by itself."""

    def __init__(self, tokens) -> None:
        self.tokens = tokens

    def tokens_of_probe(self, model: str, protocol: Protocol = Protocol.CHAT):
        return self.tokens(protocol)


async def test_a_tokenizer_that_is_not_the_worker_s_is_named_at_start(mocks, caplog) -> None:
    async with serving(with_events(mocks)) as client:
        client.gateway.fleet.compare_tokens_with(Tokenizer(lambda protocol: [5, 6, 7]))
        await eventually(lambda: warnings(caplog), what="it is said before any request")
        row = row_of(client.gateway, "w0")["parity"]
        assert row["checks"][0]["check"] == "tokens"
        assert row["checks"][0]["verdict"] == "differs"
        assert "another chat template" in row["warning"] or "starts with" in row["warning"]
        assert trust_of(client.gateway, "w0") == "exact", "tokens alone prove nothing of the blocks"


async def test_chats_alone_that_have_other_tokens_mean_another_template(mocks, caplog) -> None:
    def tokens(protocol):
        body = {"model": "mock"} | {name: msgspec.Raw(raw) for name, raw in PROBES[protocol].items()}
        ids = tokens_of(msgspec.json.decode(msgspec.json.encode(body), type=TokenizeBody))
        return ids if protocol is Protocol.COMPLETIONS else [*ids, MESSAGE_END]

    async with serving(with_events(mocks)) as client:
        client.gateway.fleet.compare_tokens_with(Tokenizer(tokens))
        await eventually(lambda: warnings(caplog), what="it is said")
        assert "plain texts the same, so the chat template differs" in warnings(caplog)[0]


async def test_workers_of_one_model_with_other_tokens_are_named(caplog, monkeypatch) -> None:
    """Tokens come from any of them."""
    async with MockFleet(2, engine=FAST) as fleet, serving(with_events(fleet.workers)) as client:
        gateway = client.gateway
        await eventually(lambda: checked(gateway, "tokens", "agree") >= 2, what="both agree")
        calls = iter(range(10**6))
        retokenized(monkeypatch, lambda ids: [next(calls) % 3 + 1, *ids])
        await eventually(lambda: checked(gateway, "tokens", "differ") >= 1, what="they differ")
        await eventually(lambda: any("other workers of its model" in line for line in warnings(caplog)))


async def test_an_adapter_without_blocks_under_its_name_is_named(mocks, caplog, monkeypatch) -> None:
    """As releases behave that do not tell the adapter in their events."""
    import loadgen.sequences as sequences

    stored = sequences.BlockStored
    monkeypatch.setattr(sequences, "BlockStored", lambda *args, **kw: stored(*args, **(kw | {"adapter": ""})))
    async with serving(with_events(mocks)) as client:
        gateway = client.gateway
        await send_until(
            client, lambda: checked(gateway, "blocks", "agree") >= 2, what="the base model agrees"
        )
        await send_until(
            client, lambda: row_of(gateway, "w0")["parity"]["warning"], what="the adapter differs", model="a1"
        )
        assert row_of(gateway, "w0")["parity"]["warning"].startswith(
            "LoRA adapter a1 has no blocks under its name: vllm"
        )
        assert trust_of(gateway, "w0") == "exact", "the base model's blocks are sound"
        await eventually(lambda: any("LoRA adapter a1" in line for line in warnings(caplog)))


async def test_salts_that_events_do_not_tell_are_named(mocks, monkeypatch) -> None:
    import loadgen.sequences as sequences

    stored = sequences.BlockStored
    monkeypatch.setattr(
        sequences, "BlockStored", lambda *args, **kw: stored(*args, **(kw | {"cache_salt": ""}))
    )
    async with serving(with_events(mocks)) as client:
        gateway = client.gateway
        await send_until(client, lambda: checked(gateway, "blocks", "agree") >= 2, what="without a salt")
        await send_until(
            client,
            lambda: row_of(gateway, "w0")["parity"]["warning"],
            what="salted prompts differ",
            cache_salt="s",
        )
        assert "come without their salt: vllm" in row_of(gateway, "w0")["parity"]["warning"]


async def test_events_that_stop_are_named(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        await send_until(
            client, lambda: checked(client.gateway, "blocks", "agree") >= 2, what="they come at first"
        )
        await mocks[0].fault("drop_events")
        await send_until(client, lambda: trust_of(client.gateway, "w0") == "degraded", what="degraded")
        assert "its KV events have stopped" in row_of(client.gateway, "w0")["trust"]["reason"]


async def test_events_that_never_come_are_named(mocks, caplog) -> None:
    """Its engine publishes nothing where its events are looked for."""
    nowhere = WorkerConfig(url=mocks[0].url, name="w0", kv_events="tcp://127.0.0.1:9")
    async with serving([nowhere], until_ready=False) as client:
        await eventually(lambda: trust_of(client.gateway, "w0") == "recovering", what="w0 joins")
        await eventually(lambda: warnings(caplog), what="it is said")
        assert "no contact with the event socket yet (tcp://127.0.0.1:9" in warnings(caplog)[0]


async def test_another_engine_process_is_judged_anew(mocks, monkeypatch) -> None:
    retokenized(monkeypatch, lambda ids: ids[1:])
    async with serving(with_events(mocks)) as client:
        await send_until(client, lambda: trust_of(client.gateway, "w0") == "degraded", what="degraded")
        await mocks[0].fault("restart")
        await eventually(lambda: trust_of(client.gateway, "w0") == "exact", what="nothing is known of it")
