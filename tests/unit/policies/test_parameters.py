import math

import pytest

from policies import ALIASES, POLICIES, PolicyError, make_policy, parameters_of


def test_defaults_are_those_of_the_formula_s_source():
    assert make_policy("kv").parameters == {
        "overlap_score_credit": 1.0,
        "overlap_score_credit_decay": 0.0,
        "prefill_load_scale": 1.0,
        "host_cache_hit_weight": 0.75,
        "disk_cache_hit_weight": 0.25,
        "active_request_weight": 0.0,
        "temperature": 0.0,
        "track_prefill_tokens": True,
        "track_active_blocks": True,
        "assume_kv_reuse": True,
    }


def test_a_given_value_replaces_its_default_alone():
    parameters = make_policy("kv", {"temperature": 1, "track_active_blocks": False}).parameters
    assert parameters["temperature"] == 1.0
    assert parameters["track_active_blocks"] is False
    assert parameters["prefill_load_scale"] == 1.0


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan, "1", None, True, [1]])
def test_a_number_out_of_range_or_no_number_is_refused_with_what_is_allowed(value):
    with pytest.raises(PolicyError, match="temperature must be a finite number >= 0, not "):
        make_policy("kv", {"temperature": value})


def test_both_ends_of_a_range_are_allowed_and_no_more():
    assert make_policy("kv", {"host_cache_hit_weight": 0}).parameters["host_cache_hit_weight"] == 0
    assert make_policy("kv", {"host_cache_hit_weight": 1}).parameters["host_cache_hit_weight"] == 1
    with pytest.raises(PolicyError, match="a number from 0 to 1"):
        make_policy("kv", {"host_cache_hit_weight": 1.01})


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_a_switch_takes_true_or_false_alone(value):
    with pytest.raises(PolicyError, match="track_prefill_tokens must be true or false"):
        make_policy("kv", {"track_prefill_tokens": value})


def test_an_unknown_parameter_is_named_and_the_known_ones_are_listed():
    with pytest.raises(PolicyError, match=r"kv has no parameter 'temprature'; it has: .*temperature"):
        make_policy("kv", {"temprature": 1})
    with pytest.raises(PolicyError, match="it has: none"):
        make_policy("random", {"temperature": 1})


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(PolicyError, match=r"unknown policy 'kvv'; known: random, round_robin, .*kv"):
        make_policy("kvv")


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_mean_a_policy(alias):
    assert make_policy(alias).name == ALIASES[alias]
    assert parameters_of(alias) is parameters_of(ALIASES[alias])


@pytest.mark.parametrize("name", POLICIES)
def test_every_declaration_allows_its_own_default_and_explains_itself(name):
    for key, parameter in parameters_of(name).items():
        assert parameter.name == key
        assert parameter.check(parameter.default) == parameter.default
        assert parameter.help.endswith(".")
