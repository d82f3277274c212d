"""The index server over its sockets: mock engines publish, several indexes follow, their answers agree."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from indexer.limits import SERVICE_BODY_BYTES
from indexer.warm_start import SnapshotFile, WarmStart
from loadgen.mock_worker import MockFleet
from tests.support.index_client import IndexClient, running_index
from tests.support.serving import FAST
from tests.support.waiting import eventually

MODEL = "mock"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def mocks():
    async with MockFleet(2, engine=FAST) as fleet:
        yield fleet.workers


@pytest.fixture
async def index():
    async with running_index() as client:
        yield client


def described(worker) -> dict:
    return {
        "name": f"w{worker.index}",
        "events": worker.events_endpoint,
        "replay": worker.replay_endpoint,
        "model": MODEL,
    }


async def follow(index: IndexClient, workers) -> None:
    for worker in workers:
        status, answer = await index.post("/register", described(worker))
        assert status == 201, answer


async def complete(workers, *bodies: list[int]) -> None:
    """Requests by token ids, to the workers in turn."""
    async with aiohttp.ClientSession() as session:
        for number, tokens in enumerate(bodies):
            url = f"{workers[number % len(workers)].url}/v1/completions"
            body = {"model": MODEL, "prompt": tokens, "max_tokens": 2}
            async with session.post(url, json=body) as answer:
                assert answer.status == 200, await answer.text()


async def settled(index: IndexClient, workers) -> None:
    """Everything that the engines have published is in, and exact."""

    def is_in() -> bool:
        rows = {worker.name: (trust, stats) for worker, _, trust, stats in index.service.workers()}
        return all(
            rows[f"w{worker.index}"][0].level == "exact"
            and (rows[f"w{worker.index}"][1].last_sequence in (worker.num_event_messages - 1,))
            for worker in workers
        )

    await eventually(is_in, what="every event is in")


def prompt(number: int, num_tokens: int = 160) -> list[int]:
    return [number * 1_000 + position for position in range(num_tokens)]


async def fault(worker, **body) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{worker.url}/mock/fault", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def test_who_holds_a_prompt(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, prompt(1), prompt(2))
    await settled(index, mocks)
    status, answer = await index.post("/query", {"model": MODEL, "token_ids": prompt(1)})
    assert status == 200
    assert [(row["worker"], row["device"], row["tokens"]) for row in answer["workers"]] == [
        ("w0", 10, 160),
        ("w1", 0, 0),
    ]
    for identity in ({"adapter": "a"}, {"cache_salt": "s"}):
        _, other = await index.post("/query", {"model": MODEL, "token_ids": prompt(1), **identity})
        assert [row["device"] for row in other["workers"]] == [0, 0]


async def test_an_index_that_joins_later_says_the_same(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, *map(prompt, range(10)))
    async with running_index() as later:
        await follow(later, mocks)
        await complete(mocks, *map(prompt, range(10, 20)))
        for each in (index, later):
            await settled(each, mocks)
        assert len((await index.dump()).splitlines()) >= 200
        assert await index.dump() == await later.dump()


async def test_indexes_agree_after_the_event_transport_was_cut(mocks, index) -> None:
    async with running_index() as other:
        for each in (index, other):
            await follow(each, mocks)
        await complete(mocks, *map(prompt, range(4)))
        await settled(index, mocks)
        await fault(mocks[0], fault="drop_events")
        await complete(mocks, *map(prompt, range(4, 14)))
        await fault(mocks[0], fault="clear")
        await complete(mocks, *map(prompt, range(14, 19)))
        for each in (index, other):
            await settled(each, mocks)
        assert await index.dump() == await other.dump()
        _, answer = await index.post("/query", {"model": MODEL, "token_ids": prompt(4)})
        assert answer["workers"][0]["device"] == 10


async def test_a_warm_start_from_a_peer_asks_for_the_last_message_only(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, *map(prompt, range(6)))
    await settled(index, mocks)
    warm_start = WarmStart()
    await warm_start.fetch(index.url, None)
    await complete(mocks, *map(prompt, range(6, 8)))
    async with running_index(warm_start=warm_start) as later:
        await follow(later, mocks)
        for each in (index, later):
            await settled(each, mocks)
        assert await index.dump() == await later.dump()
        assert all(stats.num_messages < 6 for _, _, _, stats in later.service.workers())


async def test_a_warm_start_never_outlives_a_restart(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, *map(prompt, range(6)))
    await settled(index, mocks)
    warm_start = WarmStart()
    await warm_start.fetch(index.url, None)
    await fault(mocks[0], fault="restart")
    async with running_index(warm_start=warm_start) as later:
        await follow(later, mocks)
        await complete(mocks, prompt(7), prompt(8))
        for each in (index, later):
            await settled(each, mocks)
        assert await index.dump() == await later.dump()


async def test_a_snapshot_file_is_written_and_read_again(mocks, index, tmp_path) -> None:
    await follow(index, mocks)
    await complete(mocks, *map(prompt, range(6)))
    await settled(index, mocks)
    path = tmp_path / "snapshot"
    file = SnapshotFile(str(path), index.service.snapshot, 0.01)
    file.start()
    await eventually(path.exists)
    await complete(mocks, *map(prompt, range(6, 8)))
    await settled(index, mocks)
    file.stop()
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]
    warm_start = WarmStart()
    warm_start.read_file(str(path))
    async with running_index(warm_start=warm_start) as later:
        await follow(later, mocks)
        await settled(later, mocks)
        assert await index.dump() == await later.dump()


async def test_a_start_that_cannot_be_warm_is_cold_and_says_so(index, tmp_path, caplog) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"".join(index.service.snapshot())[:-1])
    warm_start = WarmStart()
    warm_start.read_file(str(damaged))
    warm_start.read_file(str(tmp_path))
    await warm_start.fetch(f"{index.url}/nothing", None)
    await warm_start.fetch("http://127.0.0.1:1", None)
    SnapshotFile(str(tmp_path / "no" / "such"), index.service.snapshot, 1.0).stop()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [str(damaged) in warnings[0], "it is damaged" in warnings[0]] == [True, True]
    assert len(warnings) == 5


async def test_a_restarted_engine_takes_nothing_along(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks[:1], prompt(1))
    await settled(index, mocks[:1])
    await fault(mocks[0], fault="restart")
    await complete(mocks[:1], prompt(2))
    await settled(index, mocks[:1])
    for tokens, depth in ((prompt(1), 0), (prompt(2), 10)):
        _, answer = await index.post("/query", {"model": MODEL, "token_ids": tokens})
        assert answer["workers"][0]["device"] == depth


async def test_by_block_hashes(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, prompt(1, 16))
    await settled(index, mocks[:1])
    block = (await index.dump()).splitlines()[0].split('"block":"')[1][:16]
    _, answer = await index.post("/query", {"block_hashes": [block]})
    assert [row["device"] for row in answer["workers"]] == [1, 0]


async def test_unregistered_workers_are_gone_and_may_come_back(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, prompt(1), prompt(2))
    await settled(index, mocks)
    before = await index.dump()
    assert (await index.post("/unregister", {"name": "w0"}))[0] == 200
    assert '"w0"' not in await index.dump()
    status, answer = await index.post("/unregister", {"name": "w0"})
    assert (status, "there are: w1" in answer["error"]["message"]) == (404, True)
    await follow(index, mocks[:1])
    await settled(index, mocks)
    assert await index.dump() == before


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/register", {"name": "w", "events": "tcp://x:1"}, 400, "model"),
        ("/register", {"name": "w", "events": "nonsense", "model": "m"}, 400, "can't listen to 'nonsense'"),
        ("/register", {"name": "", "events": "tcp://x:1", "model": "m"}, 400, "name must not be empty"),
        ("/register", {"name": "w", "events": "e", "model": "m", "engine": "x"}, 400, "engine must be one"),
        ("/register", {"name": "w", "events": "e", "model": "m", "block-size": 0}, 400, "at least 1"),
        ("/register", {"name": "w", "events": "e", "model": "m", "port": 1}, 400, "port"),
        ("/query", {"model": "m"}, 400, "either token_ids or block_hashes"),
        ("/query", {"model": "m", "token_ids": [1]}, 404, "no worker of model 'm'"),
        ("/query", {"block_hashes": ["zz"]}, 400, "hex digits"),
        ("/query", {"block_hashes": ["0" * 17]}, 400, "hex digits"),
        ("/query", [], 400, "object"),
        ("/unregister", {}, 400, "name"),
    ],
)
async def test_mistakes_are_told(index, path: str, body, status: int, words: str) -> None:
    got, answer = await index.post(path, body)
    assert got == status
    assert words in answer["error"]["message"]


async def test_token_ids_that_are_none(mocks, index) -> None:
    await follow(index, mocks)
    for token in (-1, 1 << 32):
        status, answer = await index.post("/query", {"model": MODEL, "token_ids": [token]})
        assert (status, "$.token_ids[" in answer["error"]["message"]) == (400, True)


async def test_twice_the_same_name_is_refused(mocks, index) -> None:
    await follow(index, mocks)
    status, answer = await index.post("/register", described(mocks[0]))
    assert (status, "followed already" in answer["error"]["message"]) == (400, True)


async def test_workers_and_metrics(mocks, index) -> None:
    await follow(index, mocks)
    await complete(mocks, prompt(1), prompt(2))
    await settled(index, mocks)
    _, text = await index.get("/metrics")
    assert 'kvgate_index_blocks{worker="w0"} 10' in text
    _, rows = await index.get("/workers")
    assert '"level":"exact"' in rows
    assert (await index.get("/nothing"))[0] == 404


async def test_who_may_ask() -> None:
    async with running_index(api_key="secret") as index:
        assert (await index.get("/health"))[0] == 401
        assert (await index.get("/health", headers={"Authorization": "Bearer secret"}))[0] == 200
    async with running_index() as index:
        assert (await index.get("/health"))[0] == 200
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert (await index.get("/health", headers=headers))[0] == 403


async def test_as_a_process(mocks, tmp_path) -> None:
    config = tmp_path / "index.yaml"
    config.write_text(
        "port: 1\nindex_max_bytes: 1GiB\nworkers:\n"
        f"- {{name: w1, events: '{mocks[1].events_endpoint}', replay: '{mocks[1].replay_endpoint}', "
        f"model: {MODEL}, block-size: 32}}\n"
    )
    worker = mocks[0]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "index", "--port", "0", "--config", str(config),
        "--worker", f"name=w0,events={worker.events_endpoint},replay={worker.replay_endpoint},model={MODEL}",
        stderr=asyncio.subprocess.PIPE, cwd=REPOSITORY, env=dict(os.environ),
    )  # fmt: skip
    assert process.stderr is not None
    ready = (await process.stderr.readline()).decode()
    assert "indexing 2 workers" in ready
    await complete(mocks, prompt(1), prompt(1))
    url = ready.split()[-1]
    async with aiohttp.ClientSession() as session:

        async def depths() -> list[int]:
            async with session.post(f"{url}/query", json={"model": MODEL, "token_ids": prompt(1)}) as answer:
                return [row["device"] for row in (await answer.json())["workers"]]

        async with asyncio.timeout(20):
            while await depths() != [10, 10]:  # the size that was wrong is learnt from the events
                await asyncio.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    process._transport.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--worker", "name=w0"], "--worker 'name=w0'"),
        (["--worker", "w0"], "must be KEY=VALUE"),
        (["--host", "0.0.0.0"], "--api-key must be set"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--index-max-bytes", "x"], "a size above 0"),
        (["--api-key", ""], "must not be empty"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    from router.index_command import main

    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: w", "must be a mapping"),
        ("workers: {name: w}", "workers must be a list"),
        ("workers: [{name: w}]", "worker 1: "),
        ("config: x", "no option 'config' can be set there"),
        ("ports: 1", "no option 'ports' can be set there"),
        ("port: x", "argument --port: must be"),
        ("host: 0.0.0.0", "--api-key must be set"),
        ("a: [", "while parsing"),
        ("[" * 5000, "is nested too deeply"),
    ],
)
def test_a_wrong_file(text: str, words: str, tmp_path, capsys: pytest.CaptureFixture) -> None:
    from router.index_command import main

    path = tmp_path / "index.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as exit_:
        main(["--config", str(path)])
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


async def test_errors_have_the_shape_of_openai(index) -> None:
    _, answer = await index.post("/query", {"model": "m", "token_ids": [1]})
    assert answer["error"] == {
        "message": "no worker of model 'm' is followed; there are: none",
        "type": "invalid_request_error",
        "param": "model",
        "code": "not_found",
    }
    large = io.BytesIO(b" " * (SERVICE_BODY_BYTES + 1))
    async with aiohttp.ClientSession() as session, session.post(index.url + "/query", data=large) as refused:
        assert (await refused.json())["error"]["code"] == "body_too_large"
