"""SGLang over HTTP: what it tells about itself, its gauges, and how it is asked for tokens.

Names as read in the sources of 0.4.7 to 0.5.23.
"""

from __future__ import annotations

from typing import Any

import msgspec

from policies.types import Role
from router.engines.facts import AnnouncedEvents, ModelList, WorkerFacts
from router.engines.gauges import GaugeNames
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import SERVER_INFO_BYTES
from router.engines.releases import why_no_rank
from router.engines.tokenize import json_object, offers_tokenize
from router.wire.endpoints import Protocol
from router.wire.openai import Slices

GAUGES = GaugeNames(
    running=(b"sglang:num_running_reqs",),
    waiting=(b"sglang:num_queue_reqs",),
    kv_usage=(b"sglang:token_usage",),
    rank_label="dp_rank",
)

_INFO_PATHS = ("/server_info", "/get_server_info")
"""The second is the older name."""


_RANK_HEADER_FROM = (0, 5, 10)
"""Its first release that reads `X-Data-Parallel-Rank`, for chats and completions; 0.5.9 does not."""

_ANY_HOST = frozenset(("", "*", "0.0.0.0", "::", "[::]"))
"""What a publisher listens on that listens on all addresses."""


class _KvEvents(msgspec.Struct):
    """How newer releases announce their publisher (read in 0.5.23; 0.5.11 has it not)."""

    endpoint_port_base: int
    publisher: str = "zmq"
    endpoint_host: str = ""
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    block_size: int | None = None
    dp_size: int | None = None


class _ServerInfo(msgspec.Struct):
    """The few of its settings and states that matter here; it sends some hundred."""

    internal_states: list[Any]
    version: str = ""
    page_size: int | None = None
    max_total_num_tokens: int | None = None
    dp_size: int = 1
    enable_cache_report: bool | None = None
    disable_radix_cache: bool = False
    kv_events: Any = None
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None


_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "null": Role.BOTH}
"""By `disaggregation_mode`; "null" is that of a whole server."""


async def probe(http: WorkerHttp, models: ModelList) -> WorkerFacts | None:
    """What an SGLang server tells about itself, or None when this is none."""
    info = await _server_info(http)
    if info is None:
        return None
    tokenize_problem = await offers_tokenize(http, models.base_model)
    events = _kv_events(info)
    # With context parallelism a block of its events is not a page.
    block_tokens = (events.block_size if events is not None else None) or info.page_size or None
    capacity = info.max_total_num_tokens or None
    missing = {
        "its version": not info.version,
        "a list of models": not models.models,
        "block size (page_size in its server info)": block_tokens is None,
        "KV capacity (max_total_num_tokens in its server info)": capacity is None,
        "prefix caching (it is off)": info.disable_radix_cache,
        "cached tokens in usage (--enable-cache-report)": info.enable_cache_report is False,
        f"tokenization ({tokenize_problem})": bool(tokenize_problem),
    }
    return WorkerFacts(
        engine="sglang",
        version=info.version,
        models=models.models,
        model_entries=models.entries,
        block_tokens=block_tokens,
        num_blocks=capacity // block_tokens if capacity and block_tokens else None,
        num_ranks=max(1, (events.dp_size if events is not None else None) or info.dp_size),
        rank_problem=why_no_rank("SGLang", info.version, _RANK_HEADER_FROM),
        announced_events=None if events is None else _announced(events),
        offers_tokenize=not tokenize_problem,
        role=_ROLES.get(info.disaggregation_mode or ""),
        bootstrap_port=info.disaggregation_bootstrap_port,
        missing=tuple(what for what, is_missing in missing.items() if is_missing),
    )


async def _server_info(http: WorkerHttp) -> _ServerInfo | None:
    for path in _INFO_PATHS:
        try:
            answer = await http.get(path, SERVER_INFO_BYTES)
            if answer.is_success:
                return msgspec.json.decode(answer.body, type=_ServerInfo)
        except (CallFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _kv_events(info: _ServerInfo) -> _KvEvents | None:
    """None when nothing is published over ZMQ, or the announcement is not understood."""
    try:
        events = msgspec.convert(info.kv_events, _KvEvents)
    except msgspec.ValidationError:
        return None
    return events if events.publisher == "zmq" else None


def _announced(events: _KvEvents) -> AnnouncedEvents:
    return AnnouncedEvents(
        host="" if events.endpoint_host in _ANY_HOST else events.endpoint_host,
        port=events.endpoint_port_base,
        replay_port=events.replay_endpoint_port_base,
        topic=events.topic,
    )


# Tokens


_CHAT_FIELDS = (
    "messages", "tools", "tool_choice", "reasoning_effort", "continue_final_message", "chat_template_kwargs",
)  # fmt: skip
"""What /tokenize of newer releases reads; older ones know prompts only and refuse a chat."""


def tokenize_request(protocol: Protocol, prompt: Slices, model: str) -> bytes | None:
    """The body of a POST to /tokenize for a chat, or for a text in `prompt["prompt"]` or `prompt["text"]`."""
    members = [("model", msgspec.json.encode(model))]
    if protocol is Protocol.CHAT:
        members += [(name, bytes(prompt[name])) for name in _CHAT_FIELDS if name in prompt]
    elif protocol is Protocol.COMPLETIONS:
        members.append(("prompt", bytes(prompt["prompt"])))
    elif protocol is Protocol.GENERATE:
        members.append(("prompt", bytes(prompt["text"])))
    else:
        return None
    return json_object(members)


# Control of the cache

CONTROL_PATHS = {
    "reset_prefix_cache": "/flush_cache",
    "sleep": "/release_memory_occupation",
    "wake_up": "/resume_memory_occupation",
}
CONTROL_HINT = "start SGLang with --enable-memory-saver"
