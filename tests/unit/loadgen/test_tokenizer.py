"""Tokens are deterministic, words survive the round trip, chats continue their own prefix."""

from __future__ import annotations

from loadgen.tokenizer import (
    BOS,
    FIRST_HASHED,
    FIRST_WORD,
    MESSAGE_END,
    MESSAGE_START,
    NUM_WORDS,
    TOKEN_TEXT,
    VOCABULARY_SIZE,
    WORDS,
    detokenize,
    render_chat,
    tokenize,
)


def test_words_come_back():
    text = " baba" + TOKEN_TEXT[4711] + TOKEN_TEXT[-1]
    assert tokenize(text) == [BOS, FIRST_WORD, FIRST_WORD + 4711, FIRST_WORD + NUM_WORDS - 1]
    assert detokenize(tokenize(text, add_bos=False)) == text


def test_a_word_is_one_token_with_or_without_its_space():
    assert tokenize("baba") == tokenize(" baba")
    assert len(set(WORDS)) == NUM_WORDS == 10_000


def test_other_text_has_tokens_of_its_own():
    token_ids = tokenize("Unexpected: 多字节 text\n\ttabs", add_bos=False)
    assert all(token >= FIRST_HASHED or token < FIRST_WORD for token in token_ids)
    assert max(token_ids) < VOCABULARY_SIZE
    assert tokenize("abcd") != tokenize("abce")
    assert tokenize("lone surrogate \ud800")


def test_four_characters_a_token_at_most():
    assert len(tokenize("x" * 400, add_bos=False)) == 100


def test_the_next_turn_continues_the_prompt():
    first = [("user", "baba bebe")]
    answer = " bibi bobo"
    prompt = render_chat(first)
    following = render_chat([*first, ("assistant", answer), ("user", "and")])
    assert following[: len(prompt)] == prompt
    assert following[len(prompt) : len(prompt) + 3] == [*tokenize(answer, add_bos=False), MESSAGE_END]


def test_generation_prompt_is_optional():
    with_prompt = render_chat([("user", "baba")])
    without = render_chat([("user", "baba")], add_generation_prompt=False)
    assert with_prompt[: len(without)] == without
    assert with_prompt.count(MESSAGE_START) == 2
    assert without[-1] == MESSAGE_END
