"""Twelve models' chat templates: the texts of transformers and their token ids, case by case."""

from datetime import datetime
from functools import cache

import msgspec
import pytest

from indexer.blocks import pack_tokens
from router.tokens.local.conversation import Manner
from router.tokens.local.model import LocalModel
from tests.support.tokenizers import FIXTURES, encoder

FOLDER = FIXTURES / "chat-templates"
FILES = {path.stem: msgspec.json.decode(path.read_bytes()) for path in sorted(FOLDER.glob("cases/*.json"))}
CASES = [
    pytest.param(name, case, id=f"{name}-{case['id']}")
    for name, file in FILES.items()
    for case in file["cases"]
]

SHOWS_ORDER_OF_KEYS = {"mistral-nemo-instruct-2407"}
"""Prints whole calls: there vLLM's order of keys shows, which is not the client's."""


@cache
def model(name: str, tokenizer: str = "tiny") -> LocalModel:
    file = FILES[name]
    now = datetime.fromisoformat(file["now"])
    special_tokens = {key: file[key] for key in ("bos_token", "eos_token") if file[key] is not None}
    source = (FOLDER / file["template"]).read_text()
    return LocalModel(encoder(tokenizer), {"default": source}, special_tokens, now=lambda: now)


def text_of(name, case, manner=Manner.PLAIN) -> str:
    fields = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt")
    given = {name: case[name] for name in fields if case[name] is not None}
    prompt = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}
    return model(name).text(None, prompt, manner)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_text(name, case):
    text = text_of(name, case)
    if "error" in case:  # transformers drops a null content, and this template fails over its absence
        assert case["messages"][0]["content"] in text
    else:
        assert text == case["rendered"]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_tokens(name, case):
    if "error" not in case:
        tokenizer = encoder(FILES[name]["tokenizer"])
        assert tokenizer.encode(case["rendered"]) == pack_tokens(case["token_ids"])


@pytest.mark.parametrize(("name", "case"), CASES)
def test_vllm_renders_it_alike(name, case):
    if "error" not in case and name not in SHOWS_ORDER_OF_KEYS:
        assert text_of(name, case, Manner.VLLM) == case["rendered"]
