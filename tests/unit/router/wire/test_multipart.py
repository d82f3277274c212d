"""The model's name in a form, wherever a client writes it."""

import pytest

from router.wire.limits import FORM_SCAN_BYTES
from router.wire.multipart import model_of_form

MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
FILE = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
)


@pytest.mark.parametrize("size", [10, FORM_SCAN_BYTES, 3 * FORM_SCAN_BYTES])
@pytest.mark.parametrize("model_first", [True, False])
def test_before_or_after_a_file(size, model_first):
    file = FILE + b"\x00\r\n" * (size // 3) + b"\r\n"
    parts = MODEL + file if model_first else file + MODEL
    assert model_of_form(parts + b"--b--\r\n") == "whisper-1"


def test_before_another_field():
    other = b'--b\r\nContent-Disposition: form-data; name="response_format"\r\n\r\njson\r\n'
    assert model_of_form(MODEL + other + b"--b--\r\n") == "whisper-1"
    assert model_of_form(other + MODEL + b"--b--\r\n") == "whisper-1"


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition:form-data;name="model"\r\n\r\n',
        b"Content-Disposition: form-data; name=model\r\n\r\n",
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n',
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"\r\n\r\n',
    ],
)
def test_spellings(head):
    assert model_of_form(b"--b\r\n" + head + b"m/1\r\n--b--\r\n") == "m/1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        FILE + b"data\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="models"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nunfinished',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"x" * 2000 + b"\r\n--b--",
    ],
)
def test_none_where_there_is_none(body):
    assert model_of_form(body) is None


def test_a_part_in_the_middle_of_a_large_body_is_not_looked_for():
    filler = FILE + b"x" * 2 * FORM_SCAN_BYTES + b"\r\n"
    assert model_of_form(filler + MODEL + filler + b"--b--\r\n") is None
