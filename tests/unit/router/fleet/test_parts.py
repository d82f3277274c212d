"""What is said of workers that do parts of requests."""

from __future__ import annotations

import pytest

from policies.types import Role, ServedModel, Transfer, Worker
from router.discovery import WorkerSpec
from router.fleet.parts import Note, contradicts, describe_part, fleet_notes


def worker(name: str, role: Role, protocol: str | None = "nixl", **more) -> Worker:
    engine = "sglang" if protocol == "sglang" else "vllm"
    fields = {
        "engine": engine,
        "models": (ServedModel("m"),),
        "transfer": Transfer(protocol=protocol, port=more.pop("port", None)) if protocol else None,
        "prefills_alone": engine != "sglang" or role is not Role.DECODE,
    }
    return Worker(id=name, url=f"http://{name}:1", role=role, **(fields | more))


def part(configured: Role, *args, **more) -> str:
    return describe_part(WorkerSpec(id="w", url="http://w:1", role=configured), worker("w", *args, **more))


def test_a_whole_worker_has_no_words() -> None:
    assert part(Role.BOTH, Role.BOTH, None) == ""


def test_what_vllm_does_not_tell_is_said_to_be_configured() -> None:
    told = "(as configured: the server does not tell)"
    assert part(Role.PREFILL, Role.PREFILL) == f"prefill worker, hands over by nixl {told}"
    assert part(Role.DECODE, Role.DECODE, "store") == f"decode worker, receives by store {told}"


def test_the_place_of_a_bootstrap_server_is_said() -> None:
    assert part(Role.PREFILL, Role.PREFILL, "sglang", port=8998) == (
        "prefill worker, hands over by sglang at w:8998"
    )


@pytest.mark.parametrize(
    ("configured", "is_told", "words"),
    [
        (Role.PREFILL, Role.DECODE, "decode worker, receives by sglang, by its own word: it was"),
        (Role.DECODE, Role.BOTH, "whole worker, by its own word: it was configured as decode, but"),
    ],
)  # fmt: skip
def test_a_server_that_contradicts_is_believed(configured, is_told, words) -> None:
    protocol = None if is_told is Role.BOTH else "sglang"
    assert part(configured, is_told, protocol).startswith(words)
    assert contradicts(WorkerSpec(id="w", url="http://w:1", role=configured), worker("w", is_told, protocol))


def test_a_role_that_only_the_server_tells_is_no_contradiction() -> None:
    spec = WorkerSpec(id="w", url="http://w:1")
    assert not contradicts(spec, worker("w", Role.DECODE, "sglang"))


def test_an_unknown_engine_cannot_hand_over() -> None:
    assert "gets no prompts" in part(Role.PREFILL, Role.PREFILL, None)
    assert "computes its prompts itself" in part(Role.DECODE, Role.DECODE, None)


# All together


def test_a_fleet_without_pools_has_no_notes() -> None:
    assert list(fleet_notes([worker("a", Role.BOTH, None)])) == []
    assert list(fleet_notes([])) == []


def test_pools_are_counted_by_model() -> None:
    fleet = [worker("p", Role.PREFILL), worker("d", Role.DECODE), worker("w", Role.BOTH, None)]
    assert list(fleet_notes(fleet)) == [Note("workers of m: 1 prefill, 1 decode, 1 whole")]


def test_sglang_without_a_whole_worker_hands_everything_over() -> None:
    pair = [worker("p", Role.PREFILL, "sglang"), worker("d", Role.DECODE, "sglang")]
    _, note = fleet_notes(pair)
    assert (note.is_warning, "every request is handed over" in note.text) == (False, True)
    whole = worker("w", Role.BOTH, None, engine="sglang")
    assert len(list(fleet_notes([*pair, whole]))) == 1


def test_sglang_decode_servers_without_a_prefill_worker_serve_nothing() -> None:
    for others in ([], [worker("w", Role.BOTH, None)], [worker("p", Role.PREFILL, "nixl")]):
        notes = list(fleet_notes([worker("d", Role.DECODE, "sglang"), *others]))
        assert any(note.is_warning and note.text.startswith("d: ") for note in notes)


def test_prefill_workers_whom_nobody_understands_are_named() -> None:
    fleet = [worker("p", Role.PREFILL, "mooncake"), worker("q", Role.PREFILL), worker("d", Role.DECODE)]
    assert list(fleet_notes(fleet))[1:] == [
        Note(
            "p: no decode worker of their model receives by mooncake: these prefill workers get no prompts",
            is_warning=True,
        )
    ]
    assert any(note.is_warning for note in fleet_notes([worker("p", Role.PREFILL, None)]))


def test_other_models_do_not_help() -> None:
    other = (ServedModel("other"),)
    notes = list(fleet_notes([worker("p", Role.PREFILL), worker("d", Role.DECODE, models=other)]))
    assert [note.is_warning for note in notes] == [False, True, False]
