"""Which requests are not split between two workers, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from router.wire.endpoints import Endpoint, EndpointKind, Protocol

Members = Mapping[str, msgspec.Raw]

_SPLIT = {Protocol.CHAT, Protocol.COMPLETIONS}
_SPLIT_BY_SGLANG = _SPLIT | {Protocol.GENERATE}


def why_whole(
    members: Members | None, endpoint: Endpoint, protocols: Iterable[str], takes_batches: bool
) -> str:
    """Why one worker has to do all of this request; "" when two may share it. `protocols`: by which the fleet
    hands over. `takes_batches`: all of these take several prompts, or answers, at once."""
    names = set(protocols)
    split = _SPLIT_BY_SGLANG if names == {"sglang"} else _SPLIT
    if endpoint.kind is not EndpointKind.INFERENCE or endpoint.protocol not in split:
        return f"{endpoint.path} is not handed over"
    if members is None:
        return "its body is no JSON object that strict readers take"
    if not takes_batches:
        if (num_prompts(members, endpoint) or 1) > 1:
            return "it has several prompts, and only one of them would be handed over"
        if _is_above_one(members.get("n", _NULL)):
            return "it asks for several answers ('n'), and only one of them would find the prompt's KV"
    if names != {"sglang"} and (name := _first_set(members, _NEEDS_THE_PROMPT)):
        return f"'{name}' needs the prompt computed where the answer comes from"
    if "sglang" in names and _wants_prompt_logprobs(members):
        return "log probabilities of the prompt come from where it is computed"
    return ""


def num_prompts(members: Members, endpoint: Endpoint) -> int | None:
    """Of a request with a list of prompts; None where it has one that is no list."""
    for name in _PROMPTS.get(endpoint.protocol, ()):
        if _BEGINS_WITH_PROMPT.match(members.get(name, _NULL)):
            return len(_decode_list(members[name]))
    return None


_PROMPTS = {Protocol.COMPLETIONS: ("prompt",), Protocol.GENERATE: ("text", "input_ids")}

_BEGINS_WITH_PROMPT = re.compile(rb'\[\s*["\[]')
"""A list of texts or of lists. One of numbers is one prompt, and may be long: it is not taken apart."""

_NULL = msgspec.Raw(b"null")
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _first_set(members: Members, tests: Mapping[str, Callable[[msgspec.Raw], bool]]) -> str | None:
    return next((name for name, is_set in tests.items() if is_set(members.get(name, _NULL))), None)


def _is_given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"false")


def _is_above_one(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"1", b"0")


def _is_no_count(raw: msgspec.Raw) -> bool:
    """Negative, or spelled as something else that an engine may take for that."""
    return bytes(raw) != b"null" and not bytes(memoryview(raw)[:1]).isdigit()


_NEEDS_THE_PROMPT = {
    "prompt_logprobs": _is_given,
    "echo": _is_given,
    "prompt_embeds": _is_given,
    "use_beam_search": _is_given,
    "best_of": _is_above_one,
    # To what the model takes, less what is to be generated: of the two legs, only one knows that.
    "truncate_prompt_tokens": _is_no_count,
}
"""Of vLLM. Log probabilities of the prompt come from computing it; beams begin with several tokens of it."""


def _wants_prompt_logprobs(members: Members) -> bool:
    """SGLang: of an echo, and from where a request says, -1 being the prompt's end."""
    if _is_given(members.get("echo", _NULL)) and _is_given(members.get("logprobs", _NULL)):
        return True
    starts_at = bytes(members.get("logprob_start_len", _NULL))
    return _is_given(members.get("return_logprob", _NULL)) and starts_at not in (b"null", b"-1")
