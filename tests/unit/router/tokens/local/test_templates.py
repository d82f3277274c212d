"""Rendering: transformers' results for twelve models' templates, and what templates may do and may not."""

from datetime import datetime

import pytest

from router.tokenizer_files import NoTokenizer
from router.tokens.local.templates import ChatTemplate
from router.tokens.refusals import NoTokens

MESSAGES = [{"role": "user", "content": "Grüße <&> 'x'"}, {"role": "assistant", "content": " yes "}]


def rendered(source, messages=MESSAGES, tools=None, **variables):
    return ChatTemplate(source, now=lambda: datetime(2026, 1, 15, 12)).render(messages, tools, variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Grüße <&> \'x\'"}'),
        ("{{ [1.0, true, none] | tojson(indent=1) }}", "[\n 1.0,\n true,\n null\n]"),
        ("{{ {'b': 'ü', 'a': 2} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": 2, "b": "\\u00fc"}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ strftime_now('%d %B %Y') }}", "15 January 2026"),
        (
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("a{% generation %}{% set a = 1 %}{{ messages[1].content }}{% endgeneration %}{{ a }}b", "a yes b"),
        ("{{ tools is none }} {{ documents is none }} {{ x is defined }}", "True True False"),
    ],
)
def test_what_templates_rely_on(source, expected):
    assert rendered(source) == expected


def test_variables_tools_and_documents_arrive():
    source = "{{ tools[0].name }} {{ documents[0] }} {{ thinking }} {{ add_generation_prompt }}"
    text = rendered(
        source, tools=[{"name": "f"}], documents=["d"], thinking=False, add_generation_prompt=True
    )
    assert text == "f d False True"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ strftime_now(5) }}",
        "{{ messages | tojson(indent=messages) }}",
    ],
)
def test_a_template_that_refuses_fails_or_reaches_out(source):
    with pytest.raises(NoTokens) as refusal:
        rendered(source)
    assert refusal.value.reason == "template"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% nonsense %}", "{{ x | nonsense }}"])
def test_a_template_that_is_none(source):
    with pytest.raises(NoTokenizer, match="can't be compiled"):
        ChatTemplate(source)


LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (LOOP, "go on ", "<assistant>go on "),
        (LOOP.replace("m.content", "m.content.strip()"), " go on ", "<assistant>go on"),
        (LOOP.replace("m.content", "m.content[-1].text"), [{"text": "a"}, {"text": "b "}], "<assistant>b "),
    ],
)
def test_a_message_to_be_continued_is_left_open(source, content, expected):
    messages = [{"role": "assistant", "content": content}]
    assert rendered(source, messages, continue_final_message=True) == expected


@pytest.mark.parametrize(
    ("source", "message", "variables"),
    [
        (LOOP, {"role": "assistant"}, {}),
        (LOOP, {"role": "assistant", "content": []}, {}),
        (LOOP, {"role": "assistant", "content": "x"}, {"add_generation_prompt": True}),
        ("{{ messages[0].role }}", {"role": "assistant", "content": "x"}, {}),
        ("content", {"role": "assistant", "content": "x"}, {}),
    ],
)
def test_what_cannot_be_continued(source, message, variables):
    with pytest.raises(NoTokens):
        rendered(source, [message], continue_final_message=True, **variables)
