"""Orders to engines: where they go, what answers mean."""

from __future__ import annotations

import pytest

from router.engines import ENGINES, vllm
from router.engines.control import CONTROLS, Order, empties_cache, refusal_in, says_that_it_sleeps
from router.engines.http import Answer


def test_every_engine_with_controls_takes_every_order() -> None:
    assert CONTROLS.keys() <= ENGINES.keys()
    for controls in CONTROLS.values():
        assert controls.paths.keys() == {order.value for order in Order}


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (Answer(200, b'{"success": true}'), ""),
        (Answer(200, b""), ""),
        (Answer(200, b"null"), ""),
        (Answer(200, b"Cache flushed.\nPlease check backend logs"), ""),
        (Answer(200, b'{"success": false}'), "it says that it could not: are requests running?"),
        (Answer(400, b"Flush cache failed.\n"), "it answered 400: Flush cache failed."),
        (Answer(404, b""), "it answered 404: nothing"),
    ],
)
def test_what_an_answer_means(answer: Answer, refusal: str) -> None:
    assert refusal_in(answer) == refusal


@pytest.mark.parametrize(
    ("answer", "sleeps"),
    [
        (Answer(200, b'{"is_sleeping": true}'), True),
        (Answer(200, b'{"is_sleeping": false}'), False),
        (Answer(200, b"rubbish"), None),
        (Answer(404, b'{"is_sleeping": true}'), None),
    ],
)
def test_whether_it_sleeps(answer: Answer, sleeps: bool | None) -> None:
    assert says_that_it_sleeps(answer) is sleeps


@pytest.mark.parametrize(
    ("order", "query", "empties"),
    [
        (Order.RESET, {}, True),
        (Order.SLEEP, {}, True),
        (Order.SLEEP, {"level": "2"}, True),
        (Order.SLEEP, {"level": "0"}, False),
        (Order.WAKE, {}, False),
    ],
)
def test_which_orders_empty_the_cache(order: Order, query: dict[str, str], empties: bool) -> None:
    assert empties_cache(order, query) is empties


STATE = b'vllm:engine_sleep_state{engine="0",sleep_state="%s"} %d\n'


@pytest.mark.parametrize(
    ("text", "sleeps"),
    [
        (b"", None),
        (STATE % (b"awake", 1) + STATE % (b"weights_offloaded", 0) + STATE % (b"discard_all", 0), False),
        (STATE % (b"awake", 0) + STATE % (b"weights_offloaded", 1) + STATE % (b"discard_all", 0), True),
        (STATE % (b"awake", 0) + STATE % (b"weights_offloaded", 0) + STATE % (b"discard_all", 1), True),
        (STATE % (b"awake", 0) + STATE % (b"weights_offloaded", 0) + STATE % (b"discard_all", 0), False),
    ],
    ids=["not told", "awake", "level 1", "level 2", "level 0: paused"],
)
def test_sleep_in_vllm_s_metrics(text: bytes, sleeps: bool | None) -> None:
    assert vllm.sleeps(text) is sleeps


def test_totals_of_vllm_s_prefix_cache_by_rank() -> None:
    text = (
        b'vllm:prefix_cache_queries_total{engine="0"} 8188.0\n'
        b'vllm:prefix_cache_queries_total{engine="1"} 5.0\n'
        b'vllm:prefix_cache_hits_total{engine="0"} 1952.0\n'
    )
    assert vllm.cache_totals(text) == {"0": (8188, 1952)}
    assert vllm.cache_totals(b"") == {}
