"""Where two tokenizations of one prompt part, and what is likely to be the cause, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TextOf = Callable[[int], str]
"""A token as its vocabulary spells it."""


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first index at which they are not equal, the shorter one's end included; None where they are."""
    for index, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def likely_cause(ours: Sequence[int], theirs: Sequence[int], text_of: TextOf) -> str:
    """Why the worker's tokens (`theirs`) differ from ours; "" where they do not."""
    index = first_difference(ours, theirs)
    if index is None:
        return ""
    if _goes_on_as(theirs[index + 1 :], ours[index:]):
        return _one_more("the worker's", theirs[index], index, text_of, "ours does not")
    if _goes_on_as(ours[index + 1 :], theirs[index:]):
        return _one_more("our", ours[index], index, text_of, "the worker's does not")
    if index == len(ours):
        return f"the worker's prompt goes on with token {_shown(theirs[index], text_of)} where ours ends"
    if index == len(theirs):
        return f"our prompt goes on with token {_shown(ours[index], text_of)} where the worker's ends"
    if _spelled(ours, text_of) == _spelled(theirs, text_of):
        return "the texts are equal but cut into other tokens: the worker has another tokenizer"
    return (
        f"the texts differ from token {index} on: the worker has another chat template, other arguments for "
        "it, or another version of the tokenizer"
    )


def _one_more(whose: str, token: int, index: int, text_of: TextOf, other: str) -> str:
    shown = _shown(token, text_of)
    if index == 0:
        return f"{whose} prompt starts with token {shown}, {other}"
    return f"{whose} prompt has one more token {shown} at index {index}"


def _goes_on_as(rest: Sequence[int], other: Sequence[int]) -> bool:
    """Whether they begin alike, for as many tokens as tell."""
    num_compared = min(len(rest), len(other), _TELLING_TOKENS)
    return num_compared > 0 and list(rest[:num_compared]) == list(other[:num_compared])


_TELLING_TOKENS = 8
"""So many equal tokens in a row are no coincidence."""


def _shown(token: int, text_of: TextOf) -> str:
    return f"{token} ({text_of(token)})" if text_of(token) else str(token)


def _spelled(tokens: Sequence[int], text_of: TextOf) -> str:
    return "".join(map(text_of, tokens))
