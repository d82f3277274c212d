"""What an engine tells of its cache and can be told to do with it: where it takes an order, what its answer
means.

The orders have vLLM's names; each engine's own paths are in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from router.engines import sglang, vllm
from router.engines.http import Answer


class Order(StrEnum):
    """RESET empties the prefix cache, SLEEP gives the accelerator's memory back, WAKE takes it again."""

    RESET = "reset_prefix_cache"
    SLEEP = "sleep"
    WAKE = "wake_up"


@dataclass(frozen=True, slots=True)
class Controls:
    """One engine's. `paths`: where the orders are posted, by their names. `takes_query`: whether their query
    strings are its own. `sleep_path`: where it says whether it sleeps, "" where it does not."""

    paths: Mapping[str, str]
    takes_query: bool
    sleep_path: str
    sleeps: Callable[[bytes], bool | None]
    """Whether it sleeps with an empty cache, by the text of its metrics; None when they do not say."""
    totals: Callable[[bytes], Mapping[str, tuple[int, int]]]
    """By data-parallel rank, tokens looked up and found in its prefix cache, by the text of its metrics."""
    hint: str
    """What to do when it does not know these paths."""


CONTROLS: Mapping[str, Controls] = {
    "vllm": Controls(
        vllm.CONTROL_PATHS,
        takes_query=True,
        sleep_path=vllm.SLEEP_PATH,
        sleeps=vllm.sleeps,
        totals=vllm.cache_totals,
        hint=vllm.CONTROL_HINT,
    ),
    "sglang": Controls(
        sglang.CONTROL_PATHS,
        takes_query=False,
        sleep_path="",
        sleeps=lambda _: None,
        totals=lambda _: {},
        hint=sglang.CONTROL_HINT,
    ),
}


class _Success(msgspec.Struct):
    success: bool = True


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


def refusal_in(answer: Answer) -> str:
    """In words, why the engine did not do it; "" when it says that it did.

    vLLM refuses a reset with status 200 and `"success": false` while blocks are in use; SGLang with 400.
    """
    if not answer.is_success:
        return f"it answered {answer.status}: {_text(answer.body)}"
    try:
        is_done = msgspec.json.decode(answer.body, type=_Success).success
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # no JSON: the status is all that it says
    return "" if is_done else "it says that it could not: are requests running?"


def says_that_it_sleeps(answer: Answer) -> bool | None:
    """None when that cannot be told."""
    if not answer.is_success:
        return None
    try:
        return msgspec.json.decode(answer.body, type=_Sleeping).is_sleeping
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def empties_cache(order: Order, query: Mapping[str, str]) -> bool:
    """Whether nothing is cached once the order is carried out. vLLM's sleep at level 0 only pauses."""
    return order is Order.RESET or (order is Order.SLEEP and query.get("level") != "0")


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").strip() or "nothing"
