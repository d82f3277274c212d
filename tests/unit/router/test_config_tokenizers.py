"""Configuration of tokenizers: what is missing or has no effect joins the list of mistakes."""

import pytest

from router.config import ConfigErrors, load
from tests.support.tokenizers import TINY


def settings_of(*argv):
    return load([str(word) for word in argv], {}, lambda path: "")


def mistakes_of(*argv):
    with pytest.raises(ConfigErrors) as raised:
        settings_of(*argv)
    return [str(mistake) for mistake in raised.value.mistakes]


def test_several_models(tmp_path):
    (tmp_path / "t").write_text("x")
    settings = settings_of("--tokenizer", TINY, f"m={TINY}", "--chat-template", f"m={tmp_path}/t")
    assert settings.tokenizer == (str(TINY), f"m={TINY}")
    assert settings.chat_template == (f"m={tmp_path}/t",)


def test_what_is_not_there():
    assert mistakes_of("--tokenizer", "m=/no/such", "--chat-template", "/none") == [
        "--tokenizer: /no/such: no such file or directory",
        "--chat-template: can't read /none: No such file or directory",
    ]


@pytest.mark.parametrize("tokens", ["engine", "bytes"])
def test_what_has_no_effect(tokens):
    assert mistakes_of("--tokens", tokens, "--tokenizer", TINY) == [
        f"--tokenizer: has no effect with tokens {tokens}"
    ]


def test_two_for_one_model():
    assert mistakes_of("--tokenizer", TINY, TINY) == ["--tokenizer: given 2 times for all models"]
    assert mistakes_of("--tokenizer", f"m={TINY}", f"m={TINY}") == ["--tokenizer: given 2 times for m"]


@pytest.mark.parametrize("argv", [("--tokens", "local"), ("--tokenizer", TINY)])
def test_without_the_extra(argv, monkeypatch):
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    (mistake,) = mistakes_of(*argv)
    assert mistake.startswith(
        f"{argv[0]}: tokens are made here by tokenizers and jinja2, not installed: pip install"
    )


def test_without_the_extra_auto_is_content(monkeypatch):
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    assert settings_of().tokens == "auto"
