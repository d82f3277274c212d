"""Data-parallel ranks: each one a worker of its own behind a common URL, over the whole gateway."""

from __future__ import annotations

import asyncio

import pytest

from loadgen.engine import EngineSettings
from loadgen.mock_worker import MockFleet
from loadgen.wire import Layout
from router.config import WorkerConfig
from tests.support.fake_worker import FakeWorker
from tests.support.serving import FAST, row_of, serving, settled, trust_of, with_events, without_events
from tests.support.waiting import eventually


def words(name: str, num: int = 100) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


@pytest.fixture
async def mock():
    async with MockFleet(1, engine=FAST, data_parallel_size=2) as fleet:
        yield fleet.workers[0]


def tokens_served(worker) -> list[int]:
    """Prompt tokens that each rank has served."""
    return [rank.model.counters.prompt_tokens for rank in worker.ranks]


def ids(client) -> list[str]:
    return [row["id"] for row in client.gateway.fleet.views()]


async def test_a_rank_is_chosen_by_what_it_holds_and_the_request_reaches_that_rank(mock) -> None:
    """Prompts that share a long beginning with one rank's and a short one with the other's."""
    a, b, c, d, e = (list(range(1000 * n, 1000 * n + 16)) for n in range(1, 6))
    async with serving(with_events([mock])) as client:

        async def ask(prompt: list[int], **headers: str) -> tuple[str, int]:
            body = {"model": "mock", "prompt": prompt, "max_tokens": 1}
            before = tokens_served(mock)
            status, answer, got = await client.post("/v1/completions", body, **headers)
            assert status == 200, answer
            grown = [after - old for old, after in zip(before, tokens_served(mock), strict=True)]
            assert grown.index(max(grown)) == int(got["x-kvgate-worker"][-1])
            await settled(client.gateway, mock)
            return got["x-kvgate-worker"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        first, _ = await ask([*a, *b, *c, 1])
        other = {"w0@0": "w0@1", "w0@1": "w0@0"}[first]
        assert (await ask([*d, *b, *c, 1]))[0] == other
        assert await ask([*a, *b, *e, 1]) == (first, 32)
        assert await ask([*d, *b, *a, 1]) == (other, 32)
        assert await ask([*d, *b, *c, *e, 1]) == (other, 48)


async def test_expected_cached_tokens_are_what_each_rank_reports(mock) -> None:
    async with serving(with_events([mock])) as client:
        for turn in range(6):
            prompt = words(f"p{turn % 2}")
            _, answer = await client.complete(prompt, x_request_id=f"turn-{turn}")
            await settled(client.gateway, mock)
            _, explained = await client.admin(f"/explain?request_id=turn-{turn}")
            decision = explained["decisions"][0]
            reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (decision["expected_cached_tokens"], decision["trust"]) == (reported, "exact")
            assert (reported > 0) == (turn > 1)
        assert all(row["index"]["num_blocks"] for row in client.gateway.fleet.views())


async def test_each_rank_has_a_row_with_its_own_endpoints_and_gauges() -> None:
    async with (
        MockFleet(1, engine=EngineSettings(speedup=4.0), data_parallel_size=2) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        mock = fleet.workers[0]
        streaming = asyncio.ensure_future(client.stream(words("a"), max_tokens=200))
        await eventually(
            lambda: any(row["engine_gauges"]["running"] for row in client.gateway.fleet.views()),
            what="the engine's gauges show the stream",
        )
        rows = client.gateway.fleet.views()
        assert [(row["id"], row["server"], row["dp_rank"]) for row in rows] == [
            ("w0@0", "w0", 0), ("w0@1", "w0", 1),
        ]  # fmt: skip
        assert [row["kv_events"] for row in rows] == [
            f"tcp://127.0.0.1:{mock.events_port + rank}" for rank in (0, 1)
        ]
        assert [row["kv_replay"] for row in rows] == [
            f"tcp://127.0.0.1:{mock.replay_port + rank}" for rank in (0, 1)
        ]
        assert sorted(row["engine_gauges"]["running"] for row in rows) == [0, 1]
        busy = next(row for row in rows if row["engine_gauges"]["running"])
        worker, _ = await streaming
        assert worker == busy["id"]


async def test_ranks_of_a_dead_server_are_skipped_together_and_return_together() -> None:
    async with (
        MockFleet(2, engine=FAST, data_parallel_size=2) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        holder, _ = await client.complete(words("a"))
        server = holder.partition("@")[0]
        await fleet.workers[int(server[1])].fault("die")
        assert (await client.complete(words("a")))[0].partition("@")[0] != server
        states = {row["id"]: row["state"] for row in client.gateway.fleet.views()}
        assert {states[f"{server}@{rank}"] for rank in (0, 1)} == {"suspect"}
        await fleet.workers[int(server[1])].fault("clear")
        await eventually(
            lambda: all(row["state"] == "healthy" for row in client.gateway.fleet.views()),
            what="both are back",
        )


async def test_the_number_of_ranks_may_change_with_a_restart() -> None:
    async with MockFleet(1, engine=FAST, data_parallel_size=2) as two:
        mock = two.workers[0]
        async with serving(with_events([mock])) as client:
            await client.complete(words("a"))
            assert ids(client) == ["w0@0", "w0@1"]
            await mock.fault("restart", ranks=1)
            await eventually(lambda: ids(client) == ["w0"], what="one rank is one worker")
            await eventually(lambda: trust_of(client.gateway, "w0") == "exact")
            assert (await client.complete(words("a")))[0] == "w0"
            client.gateway.core.check()


async def test_ranks_are_drained_and_removed_one_by_one_or_all_at_once(mock) -> None:
    async with serving(with_events([mock])) as client:
        _, shown = await client.admin("/workers/w0")
        assert [row["id"] for row in shown["workers"]] == ["w0@0", "w0@1"]
        _, shown = await client.admin("/workers/w0@1", "PUT", {"draining": True})
        assert shown["worker"]["state"] == "draining"
        assert {(await client.complete(words(f"x{i}")))[0] for i in range(4)} == {"w0@0"}
        _, shown = await client.admin("/workers/w0", "PUT", {"draining": False})
        assert [row["state"] for row in shown["workers"]] == ["healthy", "healthy"]
        assert (await client.admin("/workers/w0@0", "DELETE"))[1] == {"removed": "w0@0"}
        assert ids(client) == ["w0@1"]
        assert {(await client.complete(words(f"y{i}")))[0] for i in range(4)} == {"w0@1"}
        assert (await client.admin("/list_workers"))[1] == {"urls": [mock.url]}
        assert (await client.admin("/workers/w0", "DELETE"))[1] == {"removed": "w0"}
        assert ids(client) == []
        added = {"url": mock.url, "name": "again"}
        status, answer = await client.admin("/workers", "POST", added)
        assert (status, [row["id"] for row in answer["workers"]]) == (201, ["again@0", "again@1"])


async def test_without_events_each_rank_is_predicted_by_itself(mock) -> None:
    async with serving(without_events([mock])) as client:
        holders = {name: (await client.complete(words(name)))[0] for name in "abcd"}
        assert set(holders.values()) == {"w0@0", "w0@1"}
        assert {name: (await client.complete(words(name)))[0] for name in "abcd"} == holders
        assert trust_of(client.gateway, "w0@0") == "predicted"


async def test_a_release_that_cannot_be_told_a_rank_is_one_predicted_worker() -> None:
    old = MockFleet(1, engine=FAST, data_parallel_size=2, layout=Layout.SHORT_ARRAYS)
    async with old as fleet, serving(with_events(fleet.workers)) as client:
        assert (await client.complete(words("a")))[0] == "w0"
        row = row_of(client.gateway, "w0")
        assert row["trust"]["level"] == "predicted"
        assert "2 data-parallel ranks behind one URL, and vLLM 0.9.2 lets nobody" in row["trust"]["reason"]


async def test_one_ipc_socket_for_two_ranks_is_refused_in_words(mock, caplog) -> None:
    async with serving([WorkerConfig(url=mock.url, name="w0", kv_events="ipc:///run/kv")]) as client:
        assert [trust_of(client.gateway, worker_id) for worker_id in ids(client)] == ["predicted"] * 2
        await client.complete(words("a"))
    assert any("'ipc:///run/kv' is one socket for several" in each.getMessage() for each in caplog.records)


async def test_frames_of_another_rank_are_refused(mock) -> None:
    """Both ranks are told to listen to the first one's socket."""
    both = WorkerConfig(url=mock.url, name="w0", kv_events=f"tcp://127.0.0.1:{{{mock.events_port}+rank}}")
    async with serving([both]) as client:
        mock.ranks[1].number = 0  # its frames claim to be those of rank 0
        body = {"model": "mock", "prompt": words("a"), "max_tokens": 1}
        for _ in range(4):
            async with client.session.post(
                f"{mock.url}/v1/completions", json=body, headers={"X-data-parallel-rank": "1"}
            ) as response:
                assert response.status == 200
            body["prompt"] += words("more")
        await eventually(
            lambda: row_of(client.gateway, "w0@1")["events"]["ignored"].get("other_rank") == 4,
            what="all four messages are refused",
        )
        assert [row["index"]["num_blocks"] for row in client.gateway.fleet.views()] == [0, 0]


async def test_workers_whose_ranks_meet_at_one_port_belong_there_to_who_came_first(caplog) -> None:
    """Endpoints one port apart, two ranks each."""
    async with MockFleet(2, engine=FAST, data_parallel_size=2) as fleet:
        workers = [
            WorkerConfig(url=worker.url, name=f"w{i}", kv_events=f"tcp://127.0.0.1:{5557 + i}")
            for i, worker in enumerate(fleet.workers)
        ]
        async with serving(workers, until_ready=False) as client:
            await eventually(lambda: len(ids(client)) == 4, what="both have joined")
            assert "is meant for several sockets" in row_of(client.gateway, "w1@0")["trust"]["reason"]
            assert trust_of(client.gateway, "w0@1") != "predicted"
            assert trust_of(client.gateway, "w0@0") != "predicted"
    shared = "tcp://127.0.0.1:5558 is meant for several sockets"
    assert sum(shared in each.getMessage() for each in caplog.records) == 1


async def test_what_a_client_says_of_ranks_holds_only_where_the_gateway_chooses_none(mock) -> None:
    answers = {
        "GET /v1/models": (200, b'{"data": [{"id": "mock"}]}'),
        "GET /health": (200, b""),
        "POST /v1/completions": (200, b"{}"),
    }
    header = {"X-Data-Parallel-Rank": "1"}
    async with FakeWorker(answers) as lone, serving([WorkerConfig(url=lone.url, name="w0")]) as client:
        await client.complete("a", **header)
        assert lone.requests[-1][2]["x-data-parallel-rank"] == "1"
    async with serving(with_events([mock])) as client:
        for i in range(4):
            worker, _ = await client.complete(words(f"x{i}"), **header)
            assert tokens_served(mock)[int(worker[-1])] > 0
        assert all(tokens_served(mock))
