"""Which tokenizer serves which model, and when it is looked for."""

import logging
import shutil

import pytest

from router.tokenizer_files import NoTokenizer
from router.tokens.base import ModelHints
from router.tokens.local import LocalModels, LocalTokens, models
from tests.support.token_host import StubHost, prompt_of
from tests.support.tokenizers import TINY
from tests.support.waiting import eventually


@pytest.fixture
def make():
    made = []

    def make(*arguments):
        made.append(LocalModels(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def named(model, place=TINY):
    return f"{model}={place}"


def test_named_ones_serve_their_model_and_the_rest(make, caplog):
    caplog.set_level(logging.INFO)
    local = make([named("a"), str(TINY)])
    local.load_named()
    assert local.get("a") is not local.get("b")
    assert local.get("b") is local.get("c") is not None
    assert caplog.messages == [
        f"a: tokens by {TINY}: chats and texts, cut at 4 special tokens",
        f"all models: tokens by {TINY}: chats and texts, cut at 4 special tokens",
    ]


def test_only_one_model_is_named(make):
    local = make([named("a")])
    local.load_named()
    assert local.get("a")
    assert local.get("b") is None


def test_templates_for_one_model_or_all(make, tmp_path):
    for name, text in (("one", "{{ 1 }}"), ("all", "{{ 2 }}")):
        (tmp_path / name).write_text(text)
    local = make([named("a"), named("b")], [named("a", tmp_path / "one"), str(tmp_path / "all")])
    local.load_named()
    texts = [local.get(name).text(None, {"messages": b"[]"}, "plain") for name in "ab"]
    assert texts == ["1", "2"]


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("chat_template.jinja", "{% if %}")])
def test_files_that_do_not_work(name, content, make, tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m" / name).chmod(0o644) if (tmp_path / "m" / name).exists() else None
    (tmp_path / "m" / name).write_text(content)
    with pytest.raises(NoTokenizer):
        make([str(tmp_path / "m")]).load_named()


def test_without_the_extra_the_message_names_it(make, monkeypatch):
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    with pytest.raises(NoTokenizer, match="pip install"):
        make([str(TINY)]).load_named()
    make().load_named()


# Found by what workers say


def hints(*places, model="m"):
    return {model: ModelHints(tuple(map(str, places)), "vllm")}


async def test_a_workers_root_is_tried_before_its_name(make, caplog):
    caplog.set_level(logging.INFO)
    host, local = StubHost(), make()
    LocalTokens(host, local)
    host.hints = hints(TINY, "m")
    host.listeners[0]()
    await eventually(lambda: local.get("m"))
    assert caplog.messages == [f"m: tokens by {TINY}: chats and texts, cut at 4 special tokens"]


async def test_where_nothing_is_found_it_is_said_once(make, caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    caplog.set_level(logging.INFO)
    host, local = StubHost(hints=hints("/no/such", "org/name")), make()
    LocalTokens(host, local)
    host.listeners[0]()
    assert local.is_looking_for("m")
    await eventually(lambda: not local.is_looking_for("m"))
    host.listeners[0]()
    assert not local.is_looking_for("m")
    assert caplog.messages == ["m: no tokenizer of it is here (looked for /no/such and org/name)"]


async def test_a_template_for_a_model_whose_tokenizer_is_not_found_is_a_warning(
    make, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    host, local = StubHost(hints=hints("/no/such")), make([], ["m=/some/template"])
    LocalTokens(host, local)
    host.listeners[0]()
    await eventually(lambda: not local.is_looking_for("m"))
    assert caplog.messages[-1:] == [
        "m: the chat template /some/template has no effect without its tokenizer: give --tokenizer"
    ]


async def test_one_that_is_broken_is_a_warning(make, caplog, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    host, local = StubHost(hints=hints(tmp_path, TINY)), make()
    LocalTokens(host, local)
    host.listeners[0]()
    await eventually(lambda: local.get("m"))
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith(f"m: its tokenizer is of no use here: {tmp_path}/tokenizer.json: ")


async def test_other_places_are_tried(make, caplog):
    host, local = StubHost(hints=hints("/no/such")), make()
    LocalTokens(host, local)
    host.listeners[0]()
    await eventually(lambda: not local.is_looking_for("m"))
    host.hints = hints(TINY)
    host.listeners[0]()
    await eventually(lambda: local.get("m"))


async def test_where_no_exact_overlap_is_to_be_had_a_request_has_to_ask(make):
    host, local = StubHost(exact=False, hints=hints(TINY)), make()
    tokens = LocalTokens(host, local)
    host.listeners[0]()
    assert not local.is_looking_for("m")
    await prompt_of(tokens, b'{"prompt": "x"}')
    assert host.fallbacks == {"loading": 1}
    await eventually(lambda: local.get("m"))


async def test_a_named_tokenizer_is_not_looked_for(make):
    local = make([str(TINY)])
    local.load_named()
    local.look_for("m", ["/no/such"])
    assert not local.is_looking_for("m")


async def test_there_is_an_end_to_what_is_loaded(make, monkeypatch):
    monkeypatch.setattr(models, "MODELS_KEPT", 1)
    local = make()
    local.look_for("a", ["/no/such"])
    local.look_for("b", [str(TINY)])
    await eventually(lambda: local.get("b"))
    local.look_for("c", [str(TINY)])
    assert not local.is_looking_for("c")


async def test_without_the_extra_nothing_is_looked_for(make, monkeypatch, caplog):
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    local = make()
    local.look_for("m", [str(TINY)])
    assert not local.is_looking_for("m")
    assert not caplog.messages
