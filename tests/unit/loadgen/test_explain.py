"""The line about one decision."""

from __future__ import annotations

from loadgen.explain import explain_line, most_telling


def row(worker, overlap, cost, chosen=False):
    return {"worker": worker, "device_overlap": overlap, "cost": cost, "chosen": chosen}


def decision(request_id, *rows, client_request_id=None):
    chosen = next(each["worker"] for each in rows if each["chosen"])
    return {
        "request_id": request_id, "client_request_id": client_request_id, "worker": chosen,
        "prompt_blocks": 20.0, "candidates": list(rows),
    }  # fmt: skip


PLAIN = decision("1", row("w1", 2.0, 5.0, chosen=True), row("w2", 2.0, 6.0))
TELLING = decision(
    "2",
    row("w1", 2.0, 31.0),
    row("w2", 14.0, 12.0, chosen=True),
    row("w3", 0.0, 26.04),
    client_request_id="123",
)
COSTLESS = decision("3", row("w1", 20.0, None, chosen=True))


def test_the_line():
    assert explain_line("kv", TELLING) == (
        "kv: request 123 -> w2: holds 14 of 20 blocks; cost 12.0 against 26.0, 31.0"
    )
    assert explain_line("kv", PLAIN).startswith("kv: request 1 -> w1")


def test_the_decision_in_which_the_cache_spoke_most_is_taken():
    busy = decision("4", row("w1", 40.0, 900.0, chosen=True), row("w2", 0.0, 940.0))
    assert most_telling([PLAIN, TELLING, busy, COSTLESS]) is TELLING
    alone = decision("5", row("w1", 3.0, 5.0, chosen=True))
    assert most_telling([alone]) is alone
    assert most_telling([COSTLESS]) is None
    assert most_telling([]) is None
