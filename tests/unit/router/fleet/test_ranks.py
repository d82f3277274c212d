"""What of a URL requests are sent to, and where the events of each part come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.types import Role, Transfer
from router.discovery import WorkerSpec
from router.engines import AnnouncedEvents, WorkerFacts
from router.fleet.ranks import EventEndpoints, ranks_of, without_shared_endpoints

SPEC = WorkerSpec(id="w", url="http://h:8000", kv_events="tcp://h:5557", kv_replay="tcp://h:5601")
FACTS = WorkerFacts(engine="vllm", version="0.32.0", block_tokens=16, num_blocks=10)
ANNOUNCED = AnnouncedEvents(host="", port=5557, replay_port=5601, topic="kv")


def test_one_rank_is_the_worker_itself() -> None:
    (rank,) = ranks_of(SPEC, FACTS)
    assert (rank.worker.id, rank.worker.dp_rank, rank.why_predicted) == ("w", None, "")
    assert (rank.worker.publishes_events, rank.worker.replays_events) == (True, True)
    assert rank.endpoints == EventEndpoints("tcp://h:5557", "tcp://h:5601")


def test_each_rank_is_a_worker_with_endpoints_of_its_own() -> None:
    ranks = ranks_of(SPEC, replace(FACTS, num_ranks=3))
    assert [(rank.worker.id, rank.worker.dp_rank) for rank in ranks] == [("w@0", 0), ("w@1", 1), ("w@2", 2)]
    assert [rank.endpoints for rank in ranks] == [
        EventEndpoints(f"tcp://h:{5557 + number}", f"tcp://h:{5601 + number}") for number in range(3)
    ]
    assert {rank.worker.url for rank in ranks} == {"http://h:8000"}


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (replace(SPEC, kv_events=None), FACTS, "no KV event endpoint is configured"),
        (SPEC, replace(FACTS, engine="generic"), "the KV events of this engine (generic) cannot be read"),
    ],
)
def test_why_an_index_is_predicted(spec, facts, reason) -> None:
    (rank,) = ranks_of(spec, facts)
    assert (rank.worker.publishes_events, rank.why_predicted) == (False, reason)


@pytest.mark.parametrize("untold", [{"block_tokens": None}, {"num_blocks": None}])
def test_what_events_tell_themselves_need_not_be_known_before(untold) -> None:
    (rank,) = ranks_of(SPEC, replace(FACTS, **untold))
    assert rank.worker.publishes_events


def test_ranks_that_cannot_be_told_apart_are_one_predicted_worker() -> None:
    (rank,) = ranks_of(SPEC, replace(FACTS, num_ranks=2, rank_problem="vLLM 0.11.0 is too old"))
    assert (rank.worker.id, rank.worker.dp_rank, rank.worker.publishes_events) == ("w", None, False)
    assert rank.why_predicted == "2 data-parallel ranks behind one URL, and vLLM 0.11.0 is too old"


def test_a_socket_for_several_ranks_is_believed_by_none_of_them() -> None:
    spec = replace(SPEC, kv_events="ipc:///run/kv", kv_replay=None)
    ranks = ranks_of(spec, replace(FACTS, num_ranks=2))
    assert [rank.worker.id for rank in ranks] == ["w@0", "w@1"]
    assert not any(rank.worker.publishes_events for rank in ranks)
    assert all("'ipc:///run/kv' is one socket for several" in rank.why_predicted for rank in ranks)


def test_announced_endpoints_are_at_the_workers_own_host_unless_it_names_another() -> None:
    facts = replace(FACTS, engine="vllm", num_ranks=2, announced_events=ANNOUNCED)
    spec = replace(SPEC, kv_events=None, kv_replay=None)
    assert [rank.endpoints for rank in ranks_of(spec, facts)] == [
        EventEndpoints("tcp://h:5557", "tcp://h:5601", "kv"),
        EventEndpoints("tcp://h:5558", "tcp://h:5602", "kv"),
    ]
    elsewhere = replace(facts, announced_events=AnnouncedEvents(host="10.0.0.9", port=7000))
    assert ranks_of(spec, elsewhere)[1].endpoints == EventEndpoints("tcp://10.0.0.9:7001", None, "")


def test_what_is_configured_wins_over_what_is_announced() -> None:
    (rank,) = ranks_of(SPEC, replace(FACTS, announced_events=replace(ANNOUNCED, port=9)))
    assert rank.endpoints == EventEndpoints("tcp://h:5557", "tcp://h:5601")


def test_an_announced_port_that_is_none_is_said() -> None:
    spec = replace(SPEC, kv_events=None, kv_replay=None)
    (rank,) = ranks_of(spec, replace(FACTS, announced_events=AnnouncedEvents(host="", port=0)))
    assert "a port from 1 to 65535" in rank.why_predicted


def test_two_workers_do_not_listen_to_one_publisher() -> None:
    """Ports one apart, two ranks each: rank 1 of the first would hear rank 0 of the second."""
    facts = replace(FACTS, num_ranks=2)
    other = WorkerSpec(id="v", url="http://h:8001", kv_events="tcp://h:5558")
    ranks = without_shared_endpoints([*ranks_of(SPEC, facts), *ranks_of(other, facts)])
    assert {rank.worker.id: rank.worker.publishes_events for rank in ranks} == {
        "w@0": True, "w@1": True, "v@0": False, "v@1": True,
    }  # fmt: skip
    assert "tcp://h:5558 is meant for several sockets" in ranks[2].why_predicted


def test_a_newcomer_gets_no_endpoint_that_another_worker_has() -> None:
    newcomer = WorkerSpec(id="v", url="http://h:8001", kv_events="tcp://h:5557")
    old, new = without_shared_endpoints([*ranks_of(SPEC, FACTS), *ranks_of(newcomer, FACTS)])
    assert (old.worker.publishes_events, new.worker.publishes_events) == (True, False)
    assert new.why_predicted == "tcp://h:5557 is worker w's already: give each worker an endpoint of its own"


def test_the_usual_ports_are_too_close_for_two_ranks() -> None:
    """Rank 1 would publish where rank 0 replays, which vLLM would not even start with."""
    spec = replace(SPEC, kv_events="tcp://h:5557", kv_replay="tcp://h:5558")
    ranks = without_shared_endpoints(ranks_of(spec, replace(FACTS, num_ranks=2)))
    assert not any(rank.worker.publishes_events for rank in ranks)
    (alone,) = without_shared_endpoints(ranks_of(spec, FACTS))
    assert alone.worker.publishes_events


# Parts of requests


def part_of(spec: WorkerSpec, facts: WorkerFacts) -> tuple[Role, Transfer | None, bool]:
    worker = ranks_of(spec, facts)[-1].worker
    return worker.role, worker.transfer, worker.prefills_alone


def test_a_vllm_server_is_what_was_configured() -> None:
    spec = replace(SPEC, role=Role.PREFILL, connector="mooncake", bootstrap_port=9000)
    assert part_of(spec, FACTS) == (Role.PREFILL, Transfer(protocol="mooncake", port=9000), True)
    assert part_of(replace(spec, role=Role.DECODE), FACTS)[2]
    assert part_of(SPEC, FACTS) == (Role.BOTH, None, True)


def test_an_sglang_server_is_what_it_says() -> None:
    facts = replace(FACTS, engine="sglang", role=Role.PREFILL, bootstrap_port=8998)
    transfer = Transfer(protocol="sglang", port=8998)
    for spec in (SPEC, replace(SPEC, role=Role.DECODE, connector="mooncake")):
        assert part_of(spec, facts) == (Role.PREFILL, transfer, True)
    decode = replace(facts, role=Role.DECODE, bootstrap_port=None)
    assert part_of(SPEC, decode) == (Role.DECODE, Transfer(protocol="sglang"), False)
    assert part_of(replace(SPEC, role=Role.PREFILL), replace(facts, role=Role.BOTH)) == (
        Role.BOTH,
        None,
        True,
    )


def test_an_older_sglang_server_is_what_was_configured() -> None:
    facts = replace(FACTS, engine="sglang")
    spec = replace(SPEC, role=Role.PREFILL, bootstrap_port=9)
    assert part_of(spec, facts) == (Role.PREFILL, Transfer(protocol="sglang", port=9), True)


def test_a_configured_place_wins_over_what_the_server_tells() -> None:
    facts = replace(FACTS, engine="sglang", role=Role.PREFILL, bootstrap_port=8998)
    assert part_of(replace(SPEC, bootstrap_port=9), facts)[1] == Transfer(protocol="sglang", port=9)
    elsewhere = replace(SPEC, kv_address="[fd00::1]:7")
    assert part_of(elsewhere, facts)[1] == Transfer(protocol="sglang", host="[fd00::1]", port=7)


def test_only_ranks_that_can_be_chosen_are_counted() -> None:
    """Of the others the servers choose one themselves, by the room: it must not be that of rank 0 always."""
    facts = replace(FACTS, engine="sglang", role=Role.PREFILL, num_ranks=4)
    assert part_of(SPEC, facts)[1] == Transfer(protocol="sglang", num_ranks=4)
    assert part_of(SPEC, replace(facts, rank_problem="too old"))[1] == Transfer(protocol="sglang")


def test_other_engines_hand_nothing_over() -> None:
    spec = replace(SPEC, role=Role.DECODE)
    assert part_of(spec, replace(FACTS, engine="generic")) == (Role.DECODE, None, True)
