"""What is said of a worker when it joins: one line."""

from __future__ import annotations

from router.engines.facts import WorkerFacts


def describe_worker(worker_id: str, facts: WorkerFacts, index: str, part: str = "") -> str:
    """The line for the log: engine, models, block size, capacity, what `part` of a request it does, what its
    `index` rests on, what lacks."""
    parts = [
        f"{_ENGINE_NAMES.get(facts.engine, facts.engine)} {facts.version}".rstrip(),
        _models(facts),
        f"blocks of {facts.block_tokens} tokens" if facts.block_tokens else "block size unknown",
        _capacity(facts),
        *([part] if part else []),
        index,
    ]
    if facts.num_ranks > 1:
        parts.insert(1, f"{facts.num_ranks} data-parallel ranks")
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
