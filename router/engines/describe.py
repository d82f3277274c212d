"""What is said of a worker when it joins: one line, from its facts and its configuration."""

from __future__ import annotations

from indexer.adapters import ADAPTERS
from router.engines.facts import WorkerFacts


def predicted_because(facts: WorkerFacts, kv_events: str | None) -> str | None:
    """Why the index of this worker can only be predicted, or None when it will be exact."""
    if kv_events is None:
        return "no KV event endpoint is configured"
    if facts.engine not in ADAPTERS:
        return f"the KV events of this engine ({facts.engine}) cannot be read"
    if facts.num_ranks > 1:
        return f"{facts.num_ranks} ranks behind one URL"
    if facts.block_tokens is None:
        return "its block size is unknown"
    if facts.num_blocks is None:
        return "its KV capacity is unknown"
    return None


def describe_worker(worker_id: str, facts: WorkerFacts, kv_events: str | None) -> str:
    """The line for the log: engine, models, block size, capacity, exact or predicted and why, what lacks."""
    reason = predicted_because(facts, kv_events)
    parts = [
        f"{_ENGINE_NAMES.get(facts.engine, facts.engine)} {facts.version}".rstrip(),
        _models(facts),
        f"blocks of {facts.block_tokens} tokens" if facts.block_tokens else "block size unknown",
        _capacity(facts),
        f"index exact, from {kv_events}" if reason is None else f"index predicted: {reason}",
    ]
    if facts.missing:
        parts.append(f"not told: {', '.join(facts.missing)}")
    return f"worker {worker_id}: {'; '.join(parts)}"


_ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "generic": "OpenAI-compatible server"}


def _models(facts: WorkerFacts) -> str:
    bases = [model.name for model in facts.models if model.parent is None]
    adapters = [model.name for model in facts.models if model.parent is not None]
    if not facts.models:
        return "models unknown"
    return f"serves {', '.join(bases)}" + (f" with adapters {', '.join(adapters)}" if adapters else "")


def _capacity(facts: WorkerFacts) -> str:
    if facts.num_blocks is None:
        return "KV capacity unknown"
    tokens = f" ({facts.num_blocks * facts.block_tokens:,} tokens)" if facts.block_tokens else ""
    ranks = " for each rank" if facts.num_ranks > 1 else ""
    return f"{facts.num_blocks:,} KV blocks{tokens}{ranks}"
