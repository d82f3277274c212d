"""SGLang over HTTP: what it tells about itself, its gauges, and how it is asked for tokens.

Names as read in the sources of 0.4.7 to 0.5.23.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.engines.facts import ModelList, WorkerFacts
from router.engines.gauges import GaugeNames
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import SERVER_INFO_BYTES
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


class _ServerInfo(msgspec.Struct):
    """The few of its settings and states that matter here; it sends some hundred."""

    internal_states: list[Any]
    version: str = ""
    page_size: int | None = None
    max_total_num_tokens: int | None = None
    dp_size: int = 1
    enable_cache_report: bool | None = None
    disable_radix_cache: bool = False


async def probe(http: WorkerHttp, models: ModelList) -> WorkerFacts | None:
    """What an SGLang server tells about itself, or None when this is none."""
    info = await _server_info(http)
    if info is None:
        return None
    tokenize_problem = await offers_tokenize(http, models.base_model)
    page_size, capacity = info.page_size or None, info.max_total_num_tokens or None
    missing = {
        "its version": not info.version,
        "a list of models": not models.models,
        "block size (page_size in its server info)": page_size is None,
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
        block_tokens=page_size,
        num_blocks=capacity // page_size if capacity and page_size else None,
        num_ranks=max(1, info.dp_size),
        offers_tokenize=not tokenize_problem,
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
