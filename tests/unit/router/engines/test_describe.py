"""The line that says what a worker is."""

import pytest

from policies.types import ServedModel
from router.engines import WorkerFacts
from router.engines.describe import describe_worker, predicted_because

VLLM = WorkerFacts(
    engine="vllm",
    version="0.32.0",
    models=(ServedModel("m"), ServedModel("a", "m"), ServedModel("b", "m")),
    block_tokens=32,
    num_blocks=2048,
)


def changed(**fields):
    return WorkerFacts(**({name: getattr(VLLM, name) for name in VLLM.__slots__} | fields))


def test_all_is_told():
    assert describe_worker("a:8000", VLLM, "tcp://a:5557") == (
        "worker a:8000: vLLM 0.32.0; serves m with adapters a, b; blocks of 32 tokens; "
        "2,048 KV blocks (65,536 tokens); index exact, from tcp://a:5557"
    )


def test_little_is_told():
    facts = WorkerFacts(engine="generic", missing=("its engine", "block size"))
    assert describe_worker("w", facts, None) == (
        "worker w: OpenAI-compatible server; models unknown; block size unknown; KV capacity unknown; "
        "index predicted: no KV event endpoint is configured; not told: its engine, block size"
    )


@pytest.mark.parametrize(
    ("facts", "kv_events", "reason"),
    [
        (VLLM, None, "no KV event endpoint"),
        (changed(engine="generic"), "tcp://a:1", "cannot be read"),
        (changed(num_ranks=2), "tcp://a:1", "2 ranks"),
        (changed(block_tokens=None), "tcp://a:1", "block size"),
        (changed(num_blocks=None), "tcp://a:1", "capacity"),
    ],
)
def test_why_an_index_is_predicted(facts, kv_events, reason):
    assert reason in predicted_because(facts, kv_events)
    assert f"index predicted: {predicted_because(facts, kv_events)}" in describe_worker("w", facts, kv_events)


def test_an_index_that_will_be_exact():
    assert predicted_because(VLLM, "tcp://a:1") is None
