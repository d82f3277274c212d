"""The fleet around the core: members, rounds of asking, what the proxy is told."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
import zmq

from policies import make_policy
from policies.types import Role
from router.config import Settings
from router.core.routing import RoutingCore
from router.discovery import StaticSource, WorkerSpec, WrongWorker
from router.engines.sessions import WorkerSessions
from router.fleet import Fleet, FleetTokenHost
from router.fleet.limits import REPROBE_SECONDS
from router.metrics import Metrics
from router.tokens import ModelHints
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker
from tests.support.waiting import eventually


def models(*names: str) -> dict:
    entries = ", ".join(f'{{"id": "{name}", "parent": null}}' for name in names)
    return {"GET /v1/models": (200, f'{{"data": [{entries}]}}'.encode()), "GET /health": (200, b"")}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def fleet_of(*specs: WorkerSpec, clock: Clock | None = None):
    core = RoutingCore(policy=make_policy("kv"))
    context = zmq.Context.instance()
    async with WorkerSessions(system_trust()) as sessions:
        fleet = Fleet(
            core=core, settings=Settings(), sessions=sessions, context=context, clock=clock or Clock()
        )
        fleet.start(StaticSource(specs))
        try:
            yield fleet
        finally:
            await fleet.stop()


EVENTS = "tcp://127.0.0.1:5557"


def spec(worker: FakeWorker, name: str = "w0", **fields) -> WorkerSpec:
    return WorkerSpec(id=name, url=worker.url, **fields)


async def test_models_are_the_union_and_the_first_entry_of_a_name_counts() -> None:
    async with (
        FakeWorker(models("a", "b")) as left,
        FakeWorker(models("b", "c")) as right,
        fleet_of(spec(left, "l"), spec(right, "r")) as fleet,
    ):
        await eventually(lambda: len(fleet.core.workers()) == 2)
        assert [entry["id"] for entry in fleet.model_entries()] == ["a", "b", "c"]


async def test_it_is_ready_with_one_usable_worker_and_not_while_closing() -> None:
    async with FakeWorker({"GET /v1/models": (500, b"")}) as worker, fleet_of(spec(worker)) as fleet:
        await eventually(lambda: worker.requests)
        assert fleet.has_pending()
        assert not fleet.is_ready()
        worker.answers = models("a")
        fleet.suspect("w0")  # look at once
        await eventually(fleet.is_ready)
        assert not fleet.has_pending()
        fleet.is_closing = True
        assert not fleet.is_ready()


async def test_callers_share_one_round_of_asking_and_rounds_keep_their_distance() -> None:
    clock = Clock()
    async with FakeWorker(models("a")) as worker, fleet_of(spec(worker), clock=clock) as fleet:
        await eventually(fleet.is_ready)
        worker.answers = models("a", "new")
        before = len(worker.bodies("/v1/models"))
        await asyncio.gather(*(fleet.reprobe("new") for _ in range(20)))
        assert len(worker.bodies("/v1/models")) == before + 1
        assert "new" in fleet.core.models()
        await fleet.reprobe("other")
        assert len(worker.bodies("/v1/models")) == before + 1
        clock.now += REPROBE_SECONDS
        await fleet.reprobe("other")
        assert len(worker.bodies("/v1/models")) == before + 2


async def test_what_cannot_be_added_is_said() -> None:
    async with FakeWorker(models("a")) as worker, fleet_of(spec(worker, kv_events=EVENTS)) as fleet:
        await eventually(fleet.is_ready)
        with pytest.raises(ValueError, match="is a worker already"):
            await fleet.add_worker(worker.url, name="another")
        with pytest.raises(ValueError, match="expected http"):
            await fleet.add_worker("ftp://h:1")
        for options, field in (
            ({"kv_events": "udp://h:2"}, "kv_events"),
            ({"name": "w@1"}, "name"),
            ({"name": "w0"}, "name"),
            ({"kv_events": EVENTS}, "kv_events"),
        ):
            with pytest.raises(WrongWorker, match=field) as wrong:
                await fleet.add_worker("http://h:1", **options)
            assert wrong.value.field == field
        assert [member.id for member in fleet.members] == ["w0"]


async def test_a_worker_removed_while_it_is_asked_does_not_come_back() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow_models(_: bytes) -> tuple[int, bytes]:
        asked.set()
        await answered.wait()
        return models("a")["GET /v1/models"]

    async with FakeWorker({"GET /v1/models": slow_models}) as worker, fleet_of() as fleet:
        adding = asyncio.ensure_future(fleet.add_worker(worker.url, name="w9"))
        await asked.wait()
        await fleet.remove_worker("w9")
        answered.set()
        await adding
        assert fleet.core.workers() == []
        assert fleet.views() == []


async def test_the_token_host_answers_from_the_fleet_as_it_is_now() -> None:
    async with FakeWorker(models("a")) as worker, fleet_of(spec(worker)) as fleet:
        host = FleetTokenHost(fleet.core, fleet, Metrics())
        assert host.hash_spaces("a") == []
        await eventually(fleet.is_ready)
        assert [space.base_model for space in host.hash_spaces("a")] == ["a"]
        assert host.tokenize_targets("a") == []  # it has no /tokenize
        assert not host.wants_exact_overlap("a")
        await fleet.remove_worker("w0")
        assert host.hash_spaces("a") == []


async def test_the_token_host_says_where_a_models_files_may_lie() -> None:
    entries = [
        {"id": "a", "root": "org/a", "owned_by": "vllm"},
        {"id": "lora", "root": "/lora", "parent": "a", "owned_by": "vllm"},
        {"id": "b", "owned_by": "vllm"},
    ]
    answers = {"GET /v1/models": (200, msgspec.json.encode({"data": entries}))}
    async with FakeWorker(answers) as worker, fleet_of(spec(worker)) as fleet:
        host = FleetTokenHost(fleet.core, fleet, Metrics())
        heard: list[set[str]] = []
        host.on_change(lambda: heard.append(set(host.models())))
        await eventually(fleet.is_ready)
        assert host.models() == {
            "a": ModelHints(("org/a", "a"), "vllm"),
            "b": ModelHints(("b",), "vllm"),
        }
        assert heard[-1] == {"a", "b"}


# Parts of requests


def vllm(*names: str) -> dict:
    entries = [{"id": name, "parent": None, "owned_by": "vllm"} for name in names]
    return models() | {"GET /v1/models": (200, msgspec.json.encode({"data": entries}))}


def sglang(mode: str) -> dict:
    info = {
        "internal_states": [],
        "version": "0.5.23",
        "page_size": 16,
        "disaggregation_mode": mode,
        "disaggregation_bootstrap_port": 8998,
    }
    entries = [{"id": "m", "owned_by": "sglang"}]
    return {
        "GET /v1/models": (200, msgspec.json.encode({"data": entries})),
        "GET /server_info": (200, msgspec.json.encode(info)),
        "GET /health": (200, b""),
    }


async def test_prefill_workers_alone_make_nobody_ready() -> None:
    async with (
        FakeWorker(vllm("m")) as prefill,
        FakeWorker(vllm("m")) as decode,
        fleet_of(spec(prefill, "p", role=Role.PREFILL)) as fleet,
    ):
        await eventually(lambda: fleet.core.workers())
        assert not fleet.is_ready()
        await fleet.add_worker(decode.url, name="d", role="decode")
        assert fleet.is_ready()
        await fleet.remove_worker("p")
        assert fleet.is_ready()  # it computes its prompts itself


async def test_a_pool_that_empties_and_comes_back_makes_an_sglang_fleet_ready_again() -> None:
    async with (
        FakeWorker(sglang("prefill")) as prefill,
        FakeWorker(sglang("decode")) as decode,
        fleet_of(spec(prefill, "p"), spec(decode, "d")) as fleet,
    ):
        await eventually(fleet.is_ready)
        assert {row["id"]: row["role"] for row in fleet.views()} == {"p": "prefill", "d": "decode"}
        prefill.answers = {"GET /v1/models": (500, b"")}
        fleet.suspect("p")
        assert not fleet.is_ready()
        prefill.answers = sglang("prefill")
        fleet.suspect("p")
        await eventually(fleet.is_ready)
        await fleet.remove_worker("p")
        assert not fleet.is_ready()
        await fleet.add_worker(prefill.url, name="p")
        assert fleet.is_ready()


async def test_rows_show_how_a_worker_hands_over() -> None:
    async with (
        FakeWorker(sglang("prefill")) as prefill,
        FakeWorker(sglang("decode")) as decode,
        fleet_of(spec(prefill, "p", bootstrap_port=9), spec(decode, "d")) as fleet,
    ):
        await eventually(fleet.is_ready)
        shown = {row["id"]: row["hand_over"] for row in fleet.views()}
        assert shown["p"] == {"protocol": "sglang", "host": "", "port": 9, "prefills_alone": True}
        assert (shown["d"]["protocol"], shown["d"]["prefills_alone"]) == ("sglang", False)


async def test_what_holds_of_the_pools_is_said_once_all_have_answered(caplog) -> None:
    caplog.set_level("INFO", "kvgate.fleet")
    async with (
        FakeWorker(sglang("prefill")) as prefill,
        FakeWorker(sglang("decode")) as decode,
        fleet_of(spec(prefill, "p", role=Role.DECODE), spec(decode, "d")) as fleet,
    ):
        await eventually(fleet.is_ready)
        await eventually(lambda: "every request is handed over" in caplog.text)
        await fleet.reprobe("other")
        assert caplog.text.count("workers of m: 1 prefill, 1 decode, 0 whole") == 1
        (warned,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert "by its own word: it was configured as decode" in warned
