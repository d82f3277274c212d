"""What the checks of a worker add up to, and the causes that are found for what differs."""

from __future__ import annotations

import pytest

from indexer.blocks import HASHINGS, TOKEN_BYTES, HashSpace, chain_block_hashes, pack_tokens, root_seed
from indexer.limits import DISAGREEMENTS_TO_LOWER, PARITY_SUBJECTS
from indexer.parity import (
    Check,
    MissingBlocks,
    Outcome,
    ParityState,
    StoredRoot,
    Subject,
    cause_of_blocks,
    cause_of_cached,
)
from indexer.trust import Verdict

BASE, ADAPTER, SALTED = Subject("m"), Subject("a1", "a1"), Subject("m", is_salted=True)
PROMPT = list(range(100, 110))
BLOCK = 4


def first_hash(token_ids, **namespace) -> int:
    return chain_block_hashes(pack_tokens(token_ids), BLOCK * TOKEN_BYTES, root_seed("m", **namespace))[0]


def root(token_ids, adapter="", cache_salt="") -> StoredRoot:
    return StoredRoot(adapter, cache_salt, tuple(token_ids[: BLOCK + 2]))


def missing(subject=BASE, *, salt="", **fields) -> MissingBlocks:
    values = {
        "subject": subject,
        "space": HashSpace("m", BLOCK),
        "cache_salt": salt,
        "first_hash": first_hash(PROMPT, adapter=subject.adapter, cache_salt=salt),
        "engine": "vllm 0.9.2",
        "num_messages": 3,
        "num_blocks_stored": 5,
        "was_heard": True,
        "others_agree": False,
    }
    return MissingBlocks(**(values | fields))


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (
            missing(num_messages=0, was_heard=False),
            "it sends no KV events, though it computes prompts: are they on, and is this its event endpoint?",
        ),
        (
            missing(num_messages=0),
            "its KV events have stopped, though it computes prompts: are they on, and is this its event "
            "endpoint?",
        ),
        (
            missing(num_blocks_stored=0),
            "its KV events tell of no stored blocks, though it computes prompts: is prefix caching on?",
        ),
        (
            missing(roots=[root([7] * 9), root([1, *PROMPT])]),
            "the worker's prompt starts with token 1, ours does not",
        ),
        (
            missing(ADAPTER, roots=[root(PROMPT)]),
            "LoRA adapter a1 has no blocks under its name: vllm 0.9.2 does not tell the adapter",
        ),
        (
            missing(ADAPTER, roots=[root(PROMPT, adapter="7")]),
            "LoRA adapter a1 has no blocks under its name: they come under 7",
        ),
        (
            missing(roots=[root(PROMPT, adapter="b")]),
            "blocks of the base model come under the name of adapter b",
        ),
        (
            missing(SALTED, salt="s", roots=[root(PROMPT)]),
            "blocks of salted prompts come without their salt: vllm 0.9.2 does not tell it",
        ),
        (missing(tokens_note="the tokens say it", num_messages=0), "the tokens say it"),
        (missing(tokens_note="the tokens say it", num_blocks_stored=0), "the tokens say it"),
        (missing(tokens_note="the tokens say it", roots=[root([7] * 9)]), "the tokens say it"),
        (missing(ADAPTER, others_agree=True), "LoRA adapter a1 has no blocks under its name"),
        (missing(SALTED, others_agree=True), "salted prompts have no blocks under their salt (vllm 0.9.2)"),
        (
            missing(roots=[root([7] * 9), root([2**40] * 9)]),
            "the blocks that it stores are not those of the prompts sent to it: its tokenizer or chat "
            "template is not the one that we use",
        ),
        (
            missing(tokens_agree=True),
            "the blocks that it stores are not those of the prompts sent to it, though probes have the same "
            "tokens: is this its event endpoint?",
        ),
    ],
)
def test_the_cause_of_missing_blocks(what: MissingBlocks, cause: str) -> None:
    assert cause_of_blocks(what) == cause


@pytest.mark.parametrize("space", [HashSpace("m", BLOCK, 1), HashSpace("m", BLOCK, 0, "dynamo")])
def test_causes_are_found_in_every_hash_space(space: HashSpace) -> None:
    hashing = HASHINGS[space.hashing]
    root_of = hashing.root("m")
    lookahead_bytes = space.lookahead_tokens * TOKEN_BYTES
    hashes = hashing.chain(pack_tokens(PROMPT), BLOCK * TOKEN_BYTES, root_of, None, (), lookahead_bytes)
    what = missing(space=space, first_hash=hashes[0], roots=[root([1, *PROMPT])])
    assert cause_of_blocks(what) == "the worker's prompt starts with token 1, ours does not"


def test_the_cause_of_cached_tokens_that_differ() -> None:
    assert "more cached tokens than its events let expect (32 where 16" in cause_of_cached(16, 32, "")
    assert "fewer cached tokens than its events promised (0 where 16" in cause_of_cached(16, 0, "")
    assert cause_of_cached(16, 0, "its tokens differ") == "its tokens differ"


def noted(*notes) -> ParityState:
    state = ParityState()
    for check, subject, outcome, note in notes:
        state.note(check, subject, outcome, note)
    return state


def differing(check: Check, subject: Subject, note: str):
    return [(check, subject, Outcome.DIFFERS, note)] * DISAGREEMENTS_TO_LOWER


def test_a_worker_without_findings_is_believed() -> None:
    assert (ParityState().warning, ParityState().disbelief) == ("", "")


def test_blocks_that_differ_are_disbelieved_with_the_last_cause() -> None:
    state = noted(*differing(Check.BLOCKS, BASE, "first"), (Check.BLOCKS, BASE, Outcome.DIFFERS, "then"))
    assert state.disbelief == state.warning == "then"
    state.note(Check.BLOCKS, BASE, Outcome.SKIPPED, "unclear")
    state.note(Check.BLOCKS, BASE, Outcome.AGREES)
    assert state.disbelief == "then", "one agreement does not turn it"
    state.note(Check.BLOCKS, BASE, Outcome.AGREES)
    assert state.disbelief == state.warning == ""


def test_an_adapter_that_differs_leaves_the_base_model_believed() -> None:
    state = noted((Check.BLOCKS, BASE, Outcome.AGREES, ""), *differing(Check.BLOCKS, ADAPTER, "adapter"))
    assert (state.disbelief, state.warning) == ("", "adapter")


def test_nothing_is_believed_while_all_that_was_checked_differs() -> None:
    state = noted(*differing(Check.BLOCKS, ADAPTER, "adapter"))
    assert state.disbelief == "adapter"
    state.note(Check.BLOCKS, BASE, Outcome.AGREES)
    assert state.disbelief == ""


def test_the_check_that_says_most_gives_the_warning() -> None:
    state = noted(*differing(Check.CACHED, BASE, "cached"))
    assert (state.warning, state.disbelief) == ("cached", "")
    state = noted(*differing(Check.CACHED, BASE, "cached"), *differing(Check.BLOCKS, BASE, "blocks"))
    assert state.warning == "blocks"
    state.note(Check.TOKENS, BASE, Outcome.DIFFERS, "tokens")
    assert state.warning == "tokens", "one difference of tokens is no accident"


def test_tokens_that_can_no_longer_be_compared_neither_agree_nor_differ() -> None:
    state = noted(
        (Check.TOKENS, BASE, Outcome.DIFFERS, "tokens"), (Check.TOKENS, BASE, Outcome.SKIPPED, "alone")
    )
    assert (state.warning, state.finding(Check.TOKENS, BASE).note) == ("", "alone")
    assert state.verdict(Check.TOKENS, BASE) is Verdict.OPEN
    assert +state.counts == {(Check.TOKENS, Outcome.DIFFERS): 1, (Check.TOKENS, Outcome.SKIPPED): 1}


def test_observations_are_counted_by_check_and_result() -> None:
    state = noted(
        (Check.BLOCKS, BASE, Outcome.AGREES, ""),
        (Check.BLOCKS, ADAPTER, Outcome.AGREES, ""),
        (Check.CACHED, BASE, Outcome.SKIPPED, "not told"),
    )
    assert +state.counts == {(Check.BLOCKS, Outcome.AGREES): 2, (Check.CACHED, Outcome.SKIPPED): 1}
    assert state.finding(Check.CACHED, BASE).note == "not told"
    assert state.finding(Check.CACHED, BASE).num_skipped == 1


def test_a_new_engine_process_has_other_blocks_and_the_same_tokens() -> None:
    state = noted(
        (Check.TOKENS, BASE, Outcome.AGREES, ""),
        *differing(Check.BLOCKS, BASE, "blocks"),
        *differing(Check.CACHED, BASE, "cached"),
    )
    state.forget_blocks()
    assert state.warning == ""
    assert state.verdict(Check.TOKENS, BASE) is Verdict.AGREES
    assert state.verdict(Check.BLOCKS, BASE) is Verdict.OPEN
    assert state.counts[Check.BLOCKS, Outcome.DIFFERS] == DISAGREEMENTS_TO_LOWER, "counters only rise"


def test_subjects_are_bounded_and_the_one_checked_least_recently_goes() -> None:
    state = noted(*differing(Check.BLOCKS, BASE, "base"))
    for number in range(PARITY_SUBJECTS - 1):
        state.note(Check.BLOCKS, Subject(f"a{number}", f"a{number}"), Outcome.SKIPPED)
    state.note(Check.BLOCKS, BASE, Outcome.DIFFERS, "base")
    state.note(Check.BLOCKS, Subject("one more"), Outcome.SKIPPED)
    assert len(state.findings(Check.BLOCKS)) == PARITY_SUBJECTS
    assert state.verdict(Check.BLOCKS, BASE) is Verdict.DIFFERS
    assert Subject("a0", "a0") not in state.findings(Check.BLOCKS)
