"""How long KV travels, by hand-counted examples."""

from __future__ import annotations

import pytest

from loadgen.transfer import Port, TransferModel, transfer

MODEL = TransferModel(gbps=1.0, bytes_per_token=125_000, setup_ms=5.0)
"""A token a millisecond."""


def test_a_transfer_takes_its_setup_and_its_bytes():
    assert MODEL.seconds(2000) == pytest.approx(2.005)
    assert MODEL.seconds(0) == pytest.approx(0.005)


def test_a_prompt_of_llama_8b_over_ten_gigabits():
    assert TransferModel(gbps=10.0, setup_ms=0.0).seconds(2048) == pytest.approx(2048 * 131_072 * 8 / 1e10)


def test_a_port_carries_one_thing_after_another():
    sender, first, second = Port(), Port(), Port()
    assert transfer(MODEL, 100, sender, first, now=1.0) == pytest.approx(1.105)
    assert transfer(MODEL, 100, sender, second, now=1.05) == pytest.approx(1.205), "behind the other"
    assert transfer(MODEL, 100, Port(), first, now=1.05) == pytest.approx(1.205), "the receiver is busy too"
    assert transfer(MODEL, 100, sender, second, now=9.0) == pytest.approx(9.105)


def test_other_ports_are_not_waited_for():
    transfer(MODEL, 1000, Port(), Port(), now=0.0)
    assert transfer(MODEL, 100, Port(), Port(), now=0.0) == pytest.approx(0.105)
