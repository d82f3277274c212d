"""What every policy keeps to, whatever it is for."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import POLICIES, make_policy
from policies.types import RoutingRequest
from tests.support.columns import REQUEST, make_candidates, make_times

every_policy = pytest.mark.parametrize("name", POLICIES)
blocks = st.floats(0, 1000, allow_nan=False)


@st.composite
def columns(draw, max_size=6):
    num = draw(st.integers(1, max_size))
    floats = st.lists(blocks, min_size=num, max_size=num)
    counts = st.lists(st.integers(0, 50), min_size=num, max_size=num)
    return {
        "num": num,
        "prompt_blocks": draw(blocks),
        "device": draw(floats),
        "host": draw(floats),
        "disk": draw(floats),
        "prefill": draw(floats),
        "decode": draw(floats),
        "active": draw(counts),
        "held": draw(counts),
        "served_last_row": draw(st.none() | st.integers(0, num - 1)),
        "wait": draw(floats),
        "decoding": draw(counts),
        "decoding_tokens": draw(counts),
        "resident": draw(counts),
        "free": draw(floats),
        "observed": draw(floats),
    }


TIMES = ("wait", "decoding", "decoding_tokens", "resident", "free", "observed")


def candidates_of(fields):
    plain = {key: value for key, value in fields.items() if key not in TIMES}
    return make_candidates(**plain, times=make_times(fields["num"], **{key: fields[key] for key in TIMES}))


def permuted(fields, order):
    """The same workers in another order of rows."""
    moved = {
        key: [value[row] for row in order] if isinstance(value, list) else value
        for key, value in fields.items()
    }
    last = fields["served_last_row"]
    moved["served_last_row"] = None if last is None else order.index(last)
    return moved | {"ids": [f"w{row}" for row in order]}


@every_policy
@given(fields=columns(), seed=st.integers(0, 2**32))
def test_the_choice_is_a_row_with_a_reason_and_a_cost_for_each_row_or_none(name, fields, seed):
    choice = make_policy(name).choose(REQUEST, candidates_of(fields), random.Random(seed))
    assert 0 <= choice.row < fields["num"]
    assert len(choice.costs) in (0, fields["num"])
    assert choice.reason


@every_policy
@given(fields=columns(), seed=st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_choices(name, fields, seed):
    runs = []
    for _ in range(2):
        policy, rng, candidates = make_policy(name), random.Random(seed), candidates_of(fields)
        rows = []
        for _ in range(5):
            rows.append(policy.choose(REQUEST, candidates, rng).row)
            policy.placed(candidates.workers[rows[-1]])
        runs.append(rows)
    assert runs[0] == runs[1]


@every_policy
@given(fields=columns(), data=st.data())
def test_costs_do_not_depend_on_the_order_of_rows(name, fields, data):
    order = data.draw(st.permutations(range(fields["num"])))
    policy = make_policy(name)
    costs = policy.choose(REQUEST, candidates_of(fields), random.Random(0)).costs
    moved = policy.choose(REQUEST, candidates_of(permuted(fields, order)), random.Random(0)).costs
    assert list(moved) == ([costs[row] for row in order] if costs else [])


@every_policy
@given(fields=columns(), data=st.data(), more=blocks)
def test_more_overlap_never_costs_more(name, fields, data, more):
    row = data.draw(st.integers(0, fields["num"] - 1))
    tier = data.draw(st.sampled_from(["device", "host", "disk"]))
    policy = make_policy(name)
    before = policy.choose(REQUEST, candidates_of(fields), random.Random(0)).costs
    fields[tier] = [value + more * (number == row) for number, value in enumerate(fields[tier])]
    after = policy.choose(REQUEST, candidates_of(fields), random.Random(0)).costs
    assert all(new <= old for new, old in zip(after, before, strict=True))


@every_policy
def test_a_single_worker_is_chosen(name):
    policy = make_policy(name)
    for seed in range(5):
        assert policy.choose(REQUEST, make_candidates(1, prompt_blocks=3), random.Random(seed)).row == 0


@every_policy
def test_an_unknown_prompt_on_an_idle_fleet_is_no_exception(name):
    request = RoutingRequest(id="r", model="m", num_prompt_tokens=0)
    assert make_policy(name).choose(request, make_candidates(3), random.Random(0)).row in range(3)


@every_policy
def test_choosing_again_without_placing_gives_the_same_choice(name):
    policy, candidates = make_policy(name), make_candidates(4)
    first, second = (policy.choose(REQUEST, candidates, random.Random(9)) for _ in range(2))
    assert first == second


@every_policy
def test_the_name_is_the_one_in_the_table_and_the_parameters_are_the_declared_ones(name):
    policy = make_policy(name)
    assert policy.name == name
    assert policy.parameters.keys() == type(policy).PARAMETERS.keys()
