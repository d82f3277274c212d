"""vLLM over HTTP: what it tells about itself, its gauges, and how it is asked for tokens.

Names as in releases 0.9 to 0.33; recorded answers of 0.23.0 and 0.32.0 are in `tests/fixtures/http`.
"""

from __future__ import annotations

import asyncio

import msgspec

from router.engines.facts import ModelList, WorkerFacts
from router.engines.gauges import GaugeNames
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import METRICS_BYTES, SMALL_BYTES
from router.engines.metrics_text import Labels, find_samples
from router.engines.releases import why_no_rank
from router.engines.tokenize import json_object, offers_tokenize
from router.wire.endpoints import Protocol
from router.wire.openai import Slices

GAUGES = GaugeNames(
    running=(b"vllm:num_requests_running",),
    waiting=(b"vllm:num_requests_waiting",),
    kv_usage=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    rank_label="engine",
)


_RANK_HEADER_FROM = (0, 12, 0)
"""Its first release that reads `X-data-parallel-rank`; 0.11 does not."""


async def probe(http: WorkerHttp, models: ModelList) -> WorkerFacts | None:
    """What a vLLM server tells about itself, or None when this is none."""
    metrics = await _get_or_empty(http, "/metrics", METRICS_BYTES)
    if not models.is_owned_by("vllm") and b"\nvllm:" not in metrics:
        return None
    version, tokenize_problem = await asyncio.gather(_version(http), offers_tokenize(http, models.base_model))
    ranks = list(find_samples(metrics, b"vllm:cache_config_info"))
    config: Labels = ranks[0][0] if ranks else {}
    block_tokens = _number(config, "hash_block_size") or _number(config, "block_size")
    num_blocks = _number(config, "num_gpu_blocks")
    start_times = [value for _, value in find_samples(metrics, b"process_start_time_seconds")]
    missing = {
        "its version": not version,
        "a list of models": not models.models,
        "block size (vllm:cache_config_info in /metrics)": not block_tokens,
        "KV capacity (vllm:cache_config_info in /metrics)": not num_blocks,
        "prefix caching (it is off)": config.get("enable_prefix_caching") == "False",
        "the start time of its process": not start_times,
        f"tokenization ({tokenize_problem})": bool(tokenize_problem),
    }
    return WorkerFacts(
        engine="vllm",
        version=version,
        models=models.models,
        model_entries=models.entries,
        block_tokens=block_tokens,
        num_blocks=num_blocks,
        num_ranks=max(1, len({labels.get("engine") for labels, _ in ranks})),
        rank_problem=_rank_problem(version, {labels.get("engine", "") for labels, _ in ranks}),
        offers_tokenize=not tokenize_problem,
        start_time=start_times[0] if start_times else None,
        missing=tuple(what for what, is_missing in missing.items() if is_missing),
    )


def _rank_problem(version: str, labels: set[str]) -> str:
    """A server that runs some ranks of several counts them from another number: which one its header means
    then is not known."""
    if labels != {str(rank) for rank in range(len(labels))}:
        return f"it numbers them {', '.join(sorted(labels))} instead of from 0"
    return why_no_rank("vLLM", version, _RANK_HEADER_FROM)


async def _get_or_empty(http: WorkerHttp, path: str, max_bytes: int) -> bytes:
    try:
        answer = await http.get(path, max_bytes)
    except CallFailed:
        return b""
    return answer.body if answer.is_success else b""


class _VersionAnswer(msgspec.Struct):
    version: str


async def _version(http: WorkerHttp) -> str:
    try:
        body = await _get_or_empty(http, "/version", SMALL_BYTES)
        return msgspec.json.decode(body, type=_VersionAnswer).version
    except (msgspec.DecodeError, RecursionError):
        return ""


def _number(config: Labels, name: str) -> int | None:
    """A positive whole number; unset ones are spelled "None", and a server that is starting says 0."""
    text = config.get(name, "")
    return int(text) or None if text.isascii() and text.isdigit() else None


# Tokens


_CHAT_FIELDS = (
    "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "media_io_kwargs", "mm_processor_kwargs",
)  # fmt: skip
"""Fields that /tokenize reads in the same way as /v1/chat/completions."""


def tokenize_request(protocol: Protocol, prompt: Slices, model: str) -> bytes | None:
    """The body of a POST to /tokenize for a chat, or for the text of a completion in `prompt["prompt"]`."""
    members = [("model", msgspec.json.encode(model))]
    if protocol is Protocol.CHAT:
        members += [(name, bytes(prompt[name])) for name in _CHAT_FIELDS if name in prompt]
        members += _template_kwargs(prompt)
    elif protocol is Protocol.COMPLETIONS:
        members += [
            (name, bytes(prompt[name])) for name in ("prompt", "add_special_tokens") if name in prompt
        ]
    else:
        return None
    return json_object(members)


def _template_kwargs(prompt: Slices) -> list[tuple[str, bytes]]:
    """The arguments of the chat template. For a chat the server adds some from fields that /tokenize lacks.

    Of equal keys the last counts: the client's own `enable_thinking` wins over the one that goes with a
    reasoning effort, but the body's fields win over its arguments of the same name, as vLLM 0.32 merges them.
    """
    given = bytes(prompt.get("chat_template_kwargs", b"")).strip()
    members = []
    if effort := bytes(prompt.get("reasoning_effort", b"")):
        members.append(b'"enable_thinking":' + (b"false" if effort == b'"none"' else b"true"))
    if inside := given.removeprefix(b"{").removesuffix(b"}").strip():
        members.append(inside)
    members += [
        b'"%s":%s' % (name.encode(), bytes(prompt[name])) for name in _FOLDED_FIELDS if name in prompt
    ]
    return [("chat_template_kwargs", b"{" + b",".join(members) + b"}")] if members else []


_FOLDED_FIELDS = ("documents", "reasoning_effort")


# Control of the cache

CONTROL_PATHS = {
    "reset_prefix_cache": "/reset_prefix_cache",
    "sleep": "/sleep",
    "wake_up": "/wake_up",
}
SLEEP_PATH = "/is_sleeping"
CONTROL_HINT = "start vLLM with VLLM_SERVER_DEV_MODE=1 (and --enable-sleep-mode)"
_SLEEP_STATES = ("weights_offloaded", "discard_all")


def sleeps(metrics: bytes) -> bool | None:
    """Whether it sleeps at level 1 or 2, both of which leave nothing cached."""
    states = list(find_samples(metrics, b"vllm:engine_sleep_state"))
    if not states:
        return None
    return any(value for labels, value in states if labels.get("sleep_state") in _SLEEP_STATES)


def cache_totals(metrics: bytes) -> dict[str, tuple[int, int]]:
    """By data-parallel rank: tokens looked up in the prefix cache, and those found there. In tokens since
    0.9; of an older release the two fit no request."""
    found = [
        {labels.get("engine", "0"): int(value) for labels, value in find_samples(metrics, name)}
        for name in (b"vllm:prefix_cache_queries_total", b"vllm:prefix_cache_hits_total")
    ]
    queries, hits = found
    return {rank: (queries[rank], hits[rank]) for rank in queries.keys() & hits.keys()}
