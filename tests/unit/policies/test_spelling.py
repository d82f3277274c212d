import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    POLICIES,
    PolicyError,
    make_policy,
    parameters_of,
    parse_policies,
    parse_policy,
    spell_policy,
)
from policies.parameters import Parameter
from policies.spelling import split_list

GOAL = Parameter("goal", "fast", 0.0, None, "What for.", words=("fast", "fair"))
SWITCH = Parameter("switch", False, 0.0, 1.0, "Whether.")


def test_a_policy_with_its_parameters():
    policy = parse_policy("kv,prefill_load_scale=32, Track-Active-Blocks = off ")
    assert policy.name == "kv"
    assert policy.parameters["prefill_load_scale"] == 32.0
    assert policy.parameters["track_active_blocks"] is False


@pytest.mark.parametrize("text", ["round_robin", "round-robin", " ROUND_ROBIN ", "roundrobin"])
def test_names_as_people_write_them(text):
    assert parse_policy(text).name == "round_robin"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("best", "unknown policy 'best'; known: random, round_robin, .*kv"),
        ("", "unknown policy ''; known: "),
        ("kv,", "'' in 'kv,' is no key=value; write NAME,key=value,..."),
        ("kv,temperature", "'temperature' in .* is no key=value"),
        ("kv,temperature=", "'temperature=' in .* is no key=value"),
        ("kv,=1", "'=1' in .* is no key=value"),
        ("kv,temperature=1,temperature=2", "temperature is given twice in "),
        ("kv,weight=1,temprature=2", "kv has no parameter 'weight', 'temprature'; it has: .*temperature"),
        ("random,temperature=1", "policy random has no parameter 'temperature'; it has: none"),
        ("kv,temperature=warm", "temperature must be a finite number >= 0, not 'warm'"),
        ("kv,temperature=nan", "temperature must be a finite number >= 0, not 'nan'"),
        ("kv,host_cache_hit_weight=2", "host_cache_hit_weight must be a number from 0 to 1, not '2'"),
        ("kv,assume_kv_reuse=2", "assume_kv_reuse must be true or false, not '2'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(text, what):
    with pytest.raises(PolicyError, match=what):
        parse_policy(text)


def test_a_list_of_policies_keeps_parameters_with_their_policy():
    policies = parse_policies("random,kv,prefill_load_scale=32,temperature=0.5,kv")
    assert [spell_policy(policy) for policy in policies] == [
        "random",
        "kv,prefill_load_scale=32,temperature=0.5",
        "kv",
    ]


def test_a_parameter_before_any_policy_belongs_to_none():
    assert split_list("temperature=1,kv") == ["temperature=1", "kv"]
    with pytest.raises(PolicyError, match="unknown policy"):
        parse_policies("temperature=1,kv")


@given(st.sampled_from(sorted(POLICIES)), st.data())
def test_what_is_spelled_is_read_back(name, data):
    given = {}
    for key, parameter in parameters_of(name).items():
        if parameter.words:
            given[key] = data.draw(st.sampled_from(parameter.words))
        elif parameter.is_switch:
            given[key] = data.draw(st.booleans())
        else:
            highest = 1000 if parameter.maximum is None else parameter.maximum
            given[key] = round(data.draw(st.floats(parameter.minimum, highest)), 4)
    policy = make_policy(name, given)
    again = parse_policy(spell_policy(policy))
    assert again.name == policy.name
    assert again.parameters == pytest.approx(policy.parameters)


def test_a_parameter_that_is_one_of_a_few_words():
    assert GOAL.check("fair") == GOAL.read("FAIR") == "fair"
    assert GOAL.allowed == "one of fast, fair"
    for value in ("slow", 1, None, True):
        with pytest.raises(PolicyError, match="goal must be one of fast, fair, not "):
            GOAL.check(value)


@pytest.mark.parametrize(
    ("word", "value"), [("true", True), ("ON", True), ("1", True), ("No", False), ("0", False)]
)
def test_switches_are_read_as_people_write_them(word, value):
    assert SWITCH.read(word) is value


def test_words_are_read_with_dashes_or_underscores():
    assert parse_policy("latency,goal=first_token").parameters == {"goal": "first-token"}
    assert spell_policy(parse_policy("latency,goal=First-Token")) == "latency,goal=first-token"
