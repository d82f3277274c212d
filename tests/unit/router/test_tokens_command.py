"""`kvgate tokens`: what it prints, what it says where tokens part, and its exit codes."""

import asyncio
import io
import sys

import msgspec
import pytest

from indexer.blocks import HASHINGS, chain_block_hashes, pack_tokens, root_seed
from router import tokens_command
from tests.support.fake_worker import FakeWorker
from tests.support.tokenizers import TINY, encoder, rows

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
RENDERED = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs it with a body; returns its exit code, what it printed, and what it complained of."""

    def run(body, *argv, tokenizer=TINY):
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code = tokens_command.main(["--tokenizer", str(tokenizer), *map(str, argv)])
        shown = capsys.readouterr()
        return code, msgspec.json.decode(shown.out) if shown.out else None, shown.err

    return run


def tokens(text):
    return encoder("tiny").encode_whole(text)


def test_a_chat(run):
    code, report, _ = run(CHAT, "--block-size", 4)
    ids = tokens(RENDERED)
    hashes = chain_block_hashes(pack_tokens(ids), 16, root_seed("m"))
    assert (code, report["rendered"], report["token_ids"], report["num_tokens"]) == (
        0,
        RENDERED,
        ids,
        len(ids),
    )
    assert [int(block_hash, 16) for block_hash in report["block_hashes"]] == hashes
    assert (report["model"], report["block_size"]) == ("m", 4)


@pytest.mark.parametrize("row", rows("prompts/vllm-0.32.0.jsonl"), ids=lambda row: row["id"])
def test_recorded_prompts(row, run):
    code, report, _ = run(row["body"])
    first = row["token_ids"][0] if isinstance(row["body"].get("prompt"), list) else row["token_ids"]
    assert (code, report["token_ids"]) == (0, first)


def test_a_template_in_place_of_the_tokenizers_own(run, tmp_path):
    (tmp_path / "t").write_text("{{ messages[0].content }}!")
    assert run(CHAT, "--chat-template", tmp_path / "t")[1]["rendered"] == "hello there!"


def test_ids_are_hashed_as_they_are(run):
    code, report, _ = run({"prompt": [5, 6, 7, 8]}, "--block-size", 4, "--model", "m")
    assert (code, report["rendered"], report["token_ids"]) == (0, None, [5, 6, 7, 8])
    assert [int(h, 16) for h in report["block_hashes"]] == chain_block_hashes(
        pack_tokens([5, 6, 7, 8]), 16, root_seed("m")
    )


def test_hashes_are_those_of_the_hashing_and_the_lookahead_asked_for(run):
    ids = [5, 6, 7, 8, 9, 10, 11, 12]
    argv = ("--block-size", 4, "--model", "m", "--block-hash", "dynamo", "--lookahead-tokens", 1)
    _, report, _ = run({"prompt": ids}, *argv)
    dynamo = HASHINGS["dynamo"]
    hashes = dynamo.chain(pack_tokens(ids), 16, dynamo.root("m"), lookahead_bytes=4)
    assert len(hashes) == 1, "the second block lacks the token behind it"
    assert [int(block_hash, 16) for block_hash in report["block_hashes"]] == hashes


def test_a_salt_changes_the_hashes(run):
    plain, salted = (run(CHAT | salt, "--block-size", 4)[1] for salt in ({}, {"cache_salt": "s"}))
    assert plain["token_ids"] == salted["token_ids"]
    assert plain["block_hashes"] != salted["block_hashes"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "can't be read: Invalid JSON"),
        (b"[]", "must be a JSON object"),
        ({}, "holds neither messages nor a prompt nor a text"),
        ({"prompt": [1, "x"]}, "something else than token ids"),
        (CHAT | {"chat_template": "x"}, "by its bytes: the chat template does not take it"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "by its bytes: it holds more than text",
        ),
    ],
)
def test_what_has_no_tokens(body, words, run):
    code, report, complaint = run(body)
    assert (code, report) == (2, None)
    assert words in complaint


def test_a_template_that_refuses_says_why(run, tmp_path):
    (tmp_path / "t").write_text("{{ raise_exception('roles must alternate') }}")
    code, _, complaint = run(CHAT, "--chat-template", tmp_path / "t")
    assert code == 2
    assert "(roles must alternate)" in complaint


def test_no_tokenizer(run):
    assert run(CHAT, tokenizer="/no/such")[::2] == (2, "kvgate tokens: /no/such: no such file or directory\n")


@pytest.mark.parametrize("argv", [["--block-size", "0"], ["--block-size", "x"], ["--nonsense"]])
def test_a_wrong_command_line(argv, run):
    with pytest.raises(SystemExit) as end:
        run(CHAT, *argv)
    assert end.value.code == 2


# With a worker


@pytest.fixture
def compare(monkeypatch, capsys):
    """Runs it against a worker that answers /tokenize with these ids."""

    async def compare(body, ids, *argv, status=200):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(msgspec.json.encode(body))))
        entries = [{"id": "m", "owned_by": "vllm"}, {"id": "lora", "parent": "m", "owned_by": "vllm"}]
        answers = {
            "GET /v1/models": (200, msgspec.json.encode({"data": entries})),
            "GET /metrics": (200, b'\nvllm:cache_config_info{block_size="4",num_gpu_blocks="9"} 1\n'),
            "POST /tokenize": (status, msgspec.json.encode({"tokens": ids})),
        }
        async with FakeWorker(answers) as worker:
            argv = ["--tokenizer", str(TINY), "--worker", worker.url, *argv]
            code = await asyncio.to_thread(tokens_command.main, argv)
        shown = capsys.readouterr()
        return code, msgspec.json.decode(shown.out) if shown.out else None, shown.err, worker

    return compare


async def test_a_worker_that_agrees(compare):
    code, report, _, _ = await compare(CHAT, tokens(RENDERED))
    assert (code, report["worker"]["equal"], report["block_size"]) == (0, True, 4)
    assert "first_difference" not in report["worker"]


async def test_a_worker_that_does_not(compare):
    code, report, _, _ = await compare(CHAT, [3, *tokens(RENDERED)])
    worker = report["worker"]
    assert (code, worker["equal"], worker["num_tokens"]) == (1, False, report["num_tokens"] + 1)
    assert worker["likely_cause"] == "the worker's prompt starts with token 3 (<|pad|>), ours does not"
    difference = worker["first_difference"]
    assert (difference["index"], difference["ours"]["token"], difference["theirs"]["id"]) == (
        0,
        "<|im_start|>",
        3,
    )
    assert difference["theirs"]["text_around"].startswith("<|pad|><|im_start|>user")


async def test_an_adapter_is_named_and_hashed(compare):
    code, report, _, worker = await compare(CHAT | {"model": "lora"}, tokens(RENDERED), "--block-size", "8")
    assert (code, report["model"], report["adapter"], report["block_size"]) == (0, "m", "lora", 8)
    seed = root_seed("m", adapter="lora")
    assert (
        int(report["block_hashes"][0], 16) == chain_block_hashes(pack_tokens(tokens(RENDERED)), 32, seed)[0]
    )
    assert b'"model":"lora"' in worker.bodies("/tokenize")[-1]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (CHAT, 500, "/tokenize answered 500"),
        (CHAT | {"model": "other"}, 200, "other"),
        ({"prompt": [1, 2]}, 200, "nothing to compare"),
    ],
)
async def test_what_cannot_be_compared(body, status, words, compare):
    code, report, complaint, _ = await compare(body, [1], status=status)
    assert (code, report) == (2, None)
    assert words in complaint


def test_a_worker_that_is_not_there(run, unused_tcp_port):
    code, _, complaint = run(CHAT, "--worker", f"http://127.0.0.1:{unused_tcp_port}")
    assert code == 2
    assert "cannot connect" in complaint
    code, _, complaint = run(CHAT, "--worker", "nonsense")
    assert code == 2
