import math

import pytest

from policies import ALIASES, POLICIES, PolicyError, make_policy, parameters_of
from policies.parameters import FLOAT_MAX, Parameter, fill_in, table_of

SCALE = Parameter("scale", 1.5, 0.5, None, "How much.")
SHARE = Parameter("share", 0.25, 0.0, 1.0, "Which part.")
SWITCH = Parameter("switch", False, 0.0, 1.0, "Whether.")


def test_defaults_are_those_of_the_formula_s_source():
    assert make_policy("kv").parameters == {
        "overlap_score_credit": 1.0,
        "overlap_score_credit_decay": 0.0,
        "prefill_load_scale": 1.0,
        "host_cache_hit_weight": 0.75,
        "disk_cache_hit_weight": 0.25,
        "active_request_weight": 0.0,
        "stall_weight": 0.0,
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


@pytest.mark.parametrize("value", [-0.1, math.inf, -math.inf, math.nan, 10**400, "1", None, True, [1]])
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


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (SCALE, "a finite number >= 0.5"),
        (SHARE, "a number from 0 to 1"),
        (SWITCH, "true or false"),
    ],
)
def test_what_is_allowed_is_said_in_words_and_in_every_refusal(parameter, words):
    assert parameter.allowed == words
    with pytest.raises(PolicyError) as refusal:
        parameter.check("much")
    assert str(refusal.value) == f"{parameter.name} must be {words}, not 'much'"


def test_only_a_bool_default_makes_a_switch():
    assert SWITCH.is_switch
    assert not SHARE.is_switch
    assert not Parameter("count", 1, 0, None, "How many.").is_switch


def test_numbers_come_back_as_floats_and_switches_as_they_are():
    assert type(SCALE.check(2)) is float
    assert SCALE.check(FLOAT_MAX) == FLOAT_MAX
    assert SWITCH.check(True) is True


def test_just_below_the_minimum_is_refused():
    assert SCALE.check(0.5) == 0.5
    with pytest.raises(PolicyError, match="scale must be"):
        SCALE.check(math.nextafter(0.5, 0))


def test_filling_in_keeps_the_order_of_the_declaration_and_adds_nothing():
    declared = table_of(SCALE, SWITCH, SHARE)
    assert list(declared) == ["scale", "switch", "share"]
    filled = fill_in(declared, {"share": 1, "switch": True}, policy="p")
    assert list(filled.items()) == [("scale", 1.5), ("switch", True), ("share", 1.0)]
    assert fill_in(declared, None, policy="p") == fill_in(declared, {}, policy="p")


def test_all_unknown_parameters_are_named_at_once():
    with pytest.raises(PolicyError, match=r"policy p has no parameter 'a', 'b'; it has: scale, switch"):
        fill_in(table_of(SCALE, SWITCH), {"a": 1, "scale": 2, "b": 3}, policy="p")
