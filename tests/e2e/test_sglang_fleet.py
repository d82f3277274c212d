"""SGLang workers behind the whole gateway: alone, of several releases, with ranks, and beside vLLM."""

from __future__ import annotations

import logging

import pytest

from loadgen.mock_worker import MockFleet
from loadgen.wire import Layout
from policies import POLICIES
from tests.support.serving import (
    FAST,
    at_rest,
    counted,
    row_of,
    serving,
    settled,
    trust_of,
    with_events,
    without_events,
)
from tests.support.waiting import eventually

SGLANG = [layout for layout in Layout if layout.value.startswith("sglang")]


def words(name: str, num: int = 100) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


@pytest.fixture
async def mocks():
    async with MockFleet(2, engine=FAST, layout=Layout.SGLANG_MAPS) as fleet:
        yield fleet.workers


async def expected_and_reported(client, path: str, body: dict, request_id: str) -> tuple[int, int]:
    status, answer, _ = await client.post(path, body, x_request_id=request_id)
    assert status == 200, answer
    _, explained = await client.admin(f"/explain?request_id={request_id}")
    if "meta_info" in answer:
        reported = answer["meta_info"]["cached_tokens"]
    else:
        details = answer["usage"]["prompt_tokens_details"]
        reported = details["cached_tokens"] if details else 0
    return explained["decisions"][0]["expected_cached_tokens"], reported


BODIES = {
    "/v1/completions": {"model": "mock", "prompt": words("p"), "max_tokens": 2},
    "/v1/chat/completions": {
        "model": "mock", "messages": [{"role": "user", "content": words("m")}], "max_tokens": 2,
    },
    "/generate": {"text": words("g"), "sampling_params": {"max_new_tokens": 2}},
}  # fmt: skip


async def test_announced_endpoints_are_listened_to_without_any_template(mocks, caplog) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    async with serving(without_events(mocks)) as client:
        for i, mock in enumerate(mocks):
            row = row_of(client.gateway, f"w{i}")
            assert row["kv_events"] == f"tcp://127.0.0.1:{mock.events_port}"
            assert row["kv_replay"] == f"tcp://127.0.0.1:{mock.replay_port}"
            assert row["trust"]["level"] == "exact"
    lines = [each.getMessage() for each in caplog.records if "SGLang 0.5.23" in each.getMessage()]
    assert len(lines) == 2
    assert all(line.endswith("as it announces") and "index exact, from tcp://" in line for line in lines)


@pytest.mark.parametrize("path", BODIES)
async def test_expected_cached_tokens_are_what_sglang_reports(mocks, path) -> None:
    async with serving(without_events(mocks)) as client:
        for turn in range(3):
            expected, reported = await expected_and_reported(client, path, BODIES[path], f"turn-{turn}")
            assert expected == reported
            assert (reported > 0) == (turn > 0)
            await settled(client.gateway, *mocks)


@pytest.mark.parametrize("layout", SGLANG)
async def test_every_release_of_its_events_is_exact(layout) -> None:
    async with (
        MockFleet(2, engine=FAST, layout=layout) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        for turn in range(3):
            expected, reported = await expected_and_reported(
                client, "/v1/completions", BODIES["/v1/completions"], f"turn-{turn}"
            )
            await settled(client.gateway, *fleet.workers)
            assert expected == reported
            assert (reported > 0) == (turn > 0)
        for i in range(2):
            row = row_of(client.gateway, f"w{i}")
            assert (row["trust"]["level"], row["events"]["ignored"], row["events"]["num_orphans"]) == (
                "exact", {}, 0,
            )  # fmt: skip


async def test_equal_prompts_at_once_are_one_page_each_in_its_tree() -> None:
    """vLLM would store copies of the blocks; of the tree's pages the last user's end is the end."""
    small = MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS)
    async with small as fleet, serving(without_events(fleet.workers)) as client:
        mock = fleet.workers[0]
        prompts = [words(f"p{i % 3}", 60) for i in range(30)]
        for prompt in prompts:
            await client.complete(prompt)
        await settled(client.gateway, mock)
        assert row_of(client.gateway, "w0")["index"]["num_blocks"] == mock.ranks[0].model.pool.num_cached


async def test_its_ranks_are_workers_with_announced_endpoints_each() -> None:
    async with (
        MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS, data_parallel_size=2) as fleet,
        serving(without_events(fleet.workers)) as client,
    ):
        mock = fleet.workers[0]
        rows = client.gateway.fleet.views()
        assert [(row["id"], row["kv_events"]) for row in rows] == [
            (f"w0@{rank}", f"tcp://127.0.0.1:{mock.events_port + rank}") for rank in (0, 1)
        ]
        for turn in range(6):
            body = BODIES["/v1/completions"] | {"prompt": words(f"p{turn % 2}")}
            expected, reported = await expected_and_reported(client, "/v1/completions", body, f"t-{turn}")
            assert expected == reported
            assert (reported > 0) == (turn > 1)
            await settled(client.gateway, mock)
        assert [rank.model.counters.finished for rank in mock.ranks] == [3, 3]


async def test_ranks_of_a_release_without_the_header_are_one_predicted_worker() -> None:
    old = MockFleet(1, engine=FAST, layout=Layout.SGLANG_SHORT_ARRAYS, data_parallel_size=2)
    async with old as fleet, serving(with_events(fleet.workers)) as client:
        reason = row_of(client.gateway, "w0")["trust"]["reason"]
        assert "SGLang 0.5.5 lets nobody choose one (0.5.10 and newer do)" in reason
        await client.complete(words("a"))


@pytest.mark.parametrize("policy", POLICIES)
async def test_vllm_and_sglang_serve_one_model_under_every_policy(policy) -> None:
    """They share one index, since blocks are named by their tokens, and what each will report is known."""
    async with (
        MockFleet(1, engine=FAST) as vllm,
        MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS) as sglang,
    ):
        workers = [*vllm.workers, *sglang.workers]
        async with serving(with_events(workers), policy=policy) as client:
            holders = []
            for turn in range(12):
                body = BODIES["/v1/completions"] | {"prompt": words(f"p{turn % 4}")}
                status, _, headers = await client.post("/v1/completions", body)
                assert status == 200
                holders.append(headers["x-kvgate-worker"])
                await settled(client.gateway, *workers)
                if client.gateway.core.needs.overlap:
                    asked = await expected_and_reported(client, "/v1/completions", body, f"t-{turn}")
                    assert asked[0] == asked[1] > 0
                    await settled(client.gateway, *workers)
            assert set(holders) == {"w0", "w1"}
            if policy == "kv":
                assert holders[:4] == holders[4:8] == holders[8:]
            await at_rest(client.gateway)


async def test_a_restarted_sglang_is_never_believed_to_hold_its_old_pages(mocks) -> None:
    """It tells no start time: the connections and the numbers of its events do."""
    async with serving(without_events(mocks), bridge_ttl=0.05) as client:
        holder, _ = await client.complete(words("a", 300))
        mock = mocks[int(holder[1])]
        await eventually(lambda: row_of(client.gateway, holder)["index"]["num_blocks"] > 0)
        await mock.fault("restart")
        await eventually(
            lambda: (
                row_of(client.gateway, holder)["index"]["num_blocks"] == 0
                and trust_of(client.gateway, holder) == "exact"
            ),
            what="old pages gone, exact again",
        )
        _, answer = await client.complete(words("a", 300))
        assert answer["usage"]["prompt_tokens_details"] is None


async def test_lost_events_are_replayed_from_the_announced_socket(mocks) -> None:
    async with serving(without_events(mocks), bridge_ttl=0.05) as client:
        holder, _ = await client.complete(words("a"))
        mock = mocks[int(holder[1])]
        await mock.fault("drop_events", count=2)
        for i in range(3):
            await client.complete(f"{words('a')} {words(f'more{i}', 60)}")
        await settled(client.gateway, *mocks)
        await eventually(lambda: trust_of(client.gateway, holder) == "exact", what="replayed")
        assert row_of(client.gateway, holder)["events"]["num_replays"] > 0
        assert row_of(client.gateway, holder)["index"]["num_blocks"] == mock.ranks[0].model.pool.num_cached


async def test_what_a_rank_was_not_told_proves_nothing_of_it() -> None:
    """SGLang's own protocol reads no header, so the answer may come from a rank that holds nothing."""
    async with (
        MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS, data_parallel_size=2) as fleet,
        serving(without_events(fleet.workers), bridge_ttl=0.05) as client,
    ):
        mock = fleet.workers[0]
        for _ in range(5):
            await client.post("/generate", BODIES["/generate"])
            await settled(client.gateway, mock)
        for rank in mock.ranks:
            row = row_of(client.gateway, f"w0@{rank.number}")
            assert row["events"]["num_overreports"] == 0
            assert row["index"]["num_blocks"] == rank.model.pool.num_cached > 0
        assert counted(client.gateway, "kvgate_expected_cached_tokens_total") == 0
