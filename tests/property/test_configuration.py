"""Whatever stands in flags, environment and file: Settings, or a list of mistakes, and never a secret."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.config import ConfigErrors, Settings, load
from router.config.options import BY_NAME, OPTIONS, WORKER_KEYS, flag_of, variable_of

NAMES = st.sampled_from(sorted(BY_NAME))
SECRETS = {name for option in OPTIONS if option.secret for name in option.names}

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words
keys = st.sampled_from([*WORKER_KEYS, "name", "parameters", "temperature"]) | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def read_nothing(path):
    raise FileNotFoundError(2, "No such file or directory", path)


def outcome_of(argv, environ, content=""):
    """Settings, or the lines of the mistakes."""

    def read(path):
        return content if path == "k.yaml" else read_nothing(path)

    try:
        return load(argv, environ, read)
    except ConfigErrors as errors:
        return [str(mistake) for mistake in errors.mistakes]


def is_sound(outcome):
    return isinstance(outcome, Settings) or (bool(outcome) and all(": " in line for line in outcome))


@given(st.dictionaries(NAMES | words, values, max_size=4))
def test_any_file_is_settings_or_mistakes(content):
    assert is_sound(outcome_of(["--config", "k.yaml"], {}, yaml.safe_dump(content, allow_unicode=True)))


@given(words)
def test_any_text_in_a_file_is_settings_or_mistakes(content):
    assert is_sound(outcome_of(["--config", "k.yaml"], {}, content))


@given(st.lists(NAMES.map(flag_of) | words.filter(lambda word: word not in ("-h", "--help")), max_size=6))
def test_any_flags_are_settings_or_mistakes(argv):
    assert is_sound(outcome_of(argv, {}))


@given(st.dictionaries(NAMES.map(variable_of) | words.map(variable_of), words, max_size=4))
def test_any_environment_is_settings_or_mistakes(environ):
    assert is_sound(outcome_of([], environ))


@given(st.sampled_from(sorted(SECRETS)), st.sampled_from(["hu sh", "hush ", "hüsh", "hu\nsh", "hush"]))
def test_no_source_shows_a_key(name, key):
    content = yaml.safe_dump({name: key})
    workers = yaml.safe_dump({"workers": [{"url": "http://a", "api_key": key}]})
    for outcome in (
        outcome_of([flag_of(name), key], {}),
        outcome_of([], {variable_of(name): key}),
        outcome_of(["--config", "k.yaml"], {}, content),
        outcome_of(["--config", "k.yaml"], {}, workers),
    ):
        assert is_sound(outcome)
        assert key.strip() not in f"{outcome!r}"
