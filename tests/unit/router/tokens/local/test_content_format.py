"""What vLLM 0.32's own search found in these templates."""

import pytest
from jinja2 import Environment

from router.tokens.local.content_format import content_format_of
from router.tokens.local.templates import ChatTemplate
from tests.support.tokenizers import FIXTURES, rows

ROWS = rows("prompts/content_formats.json")


@pytest.mark.parametrize("row", [row for row in ROWS if "label" in row], ids=lambda row: row["label"])
def test_syntax(row):
    assert content_format_of(Environment().parse(row["template"])) == row["content_format"]


@pytest.mark.parametrize("row", [row for row in ROWS if "file" in row], ids=lambda row: row["file"])
def test_real_templates(row):
    template = ChatTemplate((FIXTURES / "chat-templates/templates" / row["file"]).read_text())
    assert template.content_format == row["content_format"]
    assert template.knows_developer == row["knows_developer"]
