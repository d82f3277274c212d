"""The line that says what a worker is."""

from dataclasses import replace

from policies.types import ServedModel
from router.engines import WorkerFacts
from router.engines.describe import describe_worker

VLLM = WorkerFacts(
    engine="vllm",
    version="0.32.0",
    models=(ServedModel("m"), ServedModel("a", "m"), ServedModel("b", "m")),
    block_tokens=32,
    num_blocks=2048,
)


def test_all_is_told():
    assert describe_worker("a:8000", VLLM, "index exact, from tcp://a:5557") == (
        "worker a:8000: vLLM 0.32.0; serves m with adapters a, b; blocks of 32 tokens; "
        "2,048 KV blocks (65,536 tokens); index exact, from tcp://a:5557"
    )


def test_little_is_told():
    facts = WorkerFacts(engine="generic", missing=("its engine", "block size"))
    assert describe_worker("w", facts, "index predicted: no KV event endpoint is configured") == (
        "worker w: OpenAI-compatible server; models unknown; block size unknown; KV capacity unknown; "
        "index predicted: no KV event endpoint is configured; not told: its engine, block size"
    )


def test_ranks_are_counted_and_capacity_is_that_of_each():
    facts = replace(VLLM, num_ranks=2, models=(ServedModel("m"),))
    assert describe_worker("w", facts, "index exact, from tcp://a:1 to tcp://a:2") == (
        "worker w: vLLM 0.32.0; 2 data-parallel ranks; serves m; blocks of 32 tokens; "
        "2,048 KV blocks (65,536 tokens) for each rank; index exact, from tcp://a:1 to tcp://a:2"
    )


def test_the_part_that_it_does_is_told():
    line = describe_worker("w", VLLM, "index exact", "decode worker, receives by nixl")
    assert line.endswith("; decode worker, receives by nixl; index exact")
