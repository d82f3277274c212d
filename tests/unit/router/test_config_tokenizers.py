"""Configuration of tokenizers: what is missing or has no effect joins the list of mistakes."""

import errno
import os

import pytest

from router.config import ConfigErrors, load
from tests.support.tokenizers import TINY

TOO_MANY = os.strerror(errno.ELOOP)


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


def test_what_is_no_tokenizer(tmp_path):
    for name, text in (("cut", "{"), ("other", "{}"), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
    places = [tmp_path / name for name in ("cut", "other", "list")]
    argv = [f"{place.name}={place}" for place in places]
    found = mistakes_of("--tokenizer", *argv, "--port", "x")
    assert found[0].startswith("--port: ")
    assert [text.rpartition(": ")[0] for text in found[1:]] == [
        f"--tokenizer: {place}/tokenizer.json is no tokenizer" for place in places
    ]


def test_what_is_neither_a_file_nor_a_directory(tmp_path):
    """None of these is waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    named = [f"a={tmp_path}/pipe", f"b={tmp_path}/loop", "c=/dev/zero"]
    hint = "name a directory, a tokenizer.json, or a model"
    assert mistakes_of("--tokenizer", *named) == [
        f"--tokenizer: {tmp_path}/pipe is a pipe: {hint}",
        f"--tokenizer: {tmp_path}/loop is a link that leads nowhere ({TOO_MANY}): {hint}",
        f"--tokenizer: /dev/zero is a device: {hint}",
    ]
    assert mistakes_of("--chat-template", *named) == [
        f"--chat-template: can't read {tmp_path}/pipe: it is a pipe, not a file",
        f"--chat-template: can't read {tmp_path}/loop: {TOO_MANY}",
        "--chat-template: can't read /dev/zero: it is a device, not a file",
    ]


def test_a_chat_template_without_the_extra_has_no_effect(monkeypatch, tmp_path):
    (tmp_path / "t").write_text("x")
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    (mistake,) = mistakes_of("--chat-template", tmp_path / "t")
    assert mistake.startswith("--chat-template: has no effect without tokenizers and jinja2: pip install")
