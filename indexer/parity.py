"""Do we and a worker mean the same blocks? What each check found of a worker, and the likely cause in words.

Three checks. TOKENS: a probe, tokenized by us and by the worker. BLOCKS: the hashes of a prompt that was sent
to it, against the blocks that it then stored. CACHED: the cached tokens that were expected, against those
that it reported. They are made elsewhere; here is what they add up to.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from indexer.blocks import HASHINGS, TOKEN_BYTES, BlockHash, HashSpace, pack_tokens
from indexer.limits import PARITY_SUBJECTS
from indexer.trust import Evidence, Verdict


class Check(StrEnum):
    """The checks, the one whose cause says most first."""

    TOKENS = "tokens"
    BLOCKS = "blocks"
    CACHED = "cached"


class Outcome(StrEnum):
    """SKIPPED: looked at, but nothing follows from it."""

    AGREES = "agree"
    DIFFERS = "differ"
    SKIPPED = "skipped"


class Subject(NamedTuple):
    """Prompts that can agree or differ together. `adapter` is "" for the base model."""

    model: str
    adapter: str = ""
    is_salted: bool = False


@dataclass(slots=True)
class Finding:
    """What one check found of one subject. `note`: in words, why it differs, or why it cannot be made."""

    evidence: Evidence
    num_skipped: int = 0
    note: str = ""


def _evidence_for(check: Check) -> Evidence:
    """Equal probes have equal tokens or not: nothing about them is left to chance."""
    return Evidence(to_lower=1, to_raise=1) if check is Check.TOKENS else Evidence()


class ParityState:
    """All findings about one worker."""

    def __init__(self) -> None:
        self._findings: dict[Check, OrderedDict[Subject, Finding]] = {check: OrderedDict() for check in Check}
        self._forgotten: Counter[tuple[Check, Outcome]] = Counter()

    def finding(self, check: Check, subject: Subject) -> Finding:
        """The one that observations go to."""
        findings = self._findings[check]
        if (finding := findings.get(subject)) is None:
            finding = findings[subject] = Finding(_evidence_for(check))
            if len(findings) > PARITY_SUBJECTS:
                self._forget(check, findings.popitem(last=False)[1])
        return finding

    @property
    def counts(self) -> Mapping[tuple[Check, Outcome], int]:
        """Observations so far, of subjects that were forgotten too."""
        counts = Counter(self._forgotten)
        for check, findings in self._findings.items():
            for finding in findings.values():
                counts.update(_counts_of(check, finding))
        return counts

    def _forget(self, check: Check, finding: Finding) -> None:
        self._forgotten.update(_counts_of(check, finding))

    def findings(self, check: Check) -> Mapping[Subject, Finding]:
        return self._findings[check]

    def note(self, check: Check, subject: Subject, outcome: Outcome, note: str = "") -> None:
        """One more observation. While the two differ the last cause stays."""
        findings = self._findings[check]
        finding = findings.get(subject) or self.finding(check, subject)
        if len(findings) > 1:
            findings.move_to_end(subject)
        if outcome is Outcome.SKIPPED and check is Check.TOKENS:
            self._forget(check, finding)  # with nothing to compare them with the last answer is no answer
            finding = findings[subject] = Finding(_evidence_for(check), num_skipped=1)
        elif outcome is Outcome.SKIPPED:
            finding.num_skipped += 1
        else:
            finding.evidence.note(outcome is Outcome.AGREES)
        if outcome is Outcome.DIFFERS or finding.evidence.verdict is not Verdict.DIFFERS:
            finding.note = note

    def verdict(self, check: Check, subject: Subject) -> Verdict:
        finding = self._findings[check].get(subject)
        return finding.evidence.verdict if finding is not None else Verdict.OPEN

    def agrees_somewhere(self, check: Check) -> bool:
        """Whether any subject agrees."""
        return any(each.evidence.verdict is Verdict.AGREES for each in self._findings[check].values())

    @property
    def disbelief(self) -> str:
        """Why nothing that the worker's events tell can be matched, in words; "" while some of it can."""
        if self.agrees_somewhere(Check.BLOCKS):
            return ""
        return self.worst(Check.BLOCKS)

    @property
    def warning(self) -> str:
        """The likely cause of what differs, in words; "" when nothing does."""
        return next((words for check in Check if (words := self.worst(check))), "")

    def forget_blocks(self) -> None:
        """The worker's history begins anew, and so does the judgement of it."""
        for check in (Check.BLOCKS, Check.CACHED):
            for finding in self._findings[check].values():
                self._forget(check, finding)
            self._findings[check].clear()

    def worst(self, check: Check) -> str:
        """The cause of a subject that differs; "" when none does."""
        differing = (
            finding.note
            for finding in self._findings[check].values()
            if finding.evidence.verdict is Verdict.DIFFERS
        )
        return next(differing, "")


def _counts_of(check: Check, finding: Finding) -> dict[tuple[Check, Outcome], int]:
    evidence = finding.evidence
    return {
        (check, Outcome.AGREES): evidence.num_agreed,
        (check, Outcome.DIFFERS): evidence.num_differed,
        (check, Outcome.SKIPPED): finding.num_skipped,
    }


# Causes


@dataclass(frozen=True, slots=True)
class StoredRoot:
    """The beginning of a prompt that a worker stored: what the hash of its first block covers and, where
    there is one, the next token."""

    adapter: str
    cache_salt: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlocks:
    """A prompt that was sent to a worker and computed there, and whose blocks did not appear.

    `first_hash`: of its first block. `num_messages`, `num_blocks_stored`, `roots`: what its publisher told
    meanwhile. `was_heard`: it has told something before. `others_agree`: prompts of other subjects did
    appear. `tokens_note`: why probes have other tokens there; `tokens_agree`: they have the same. `engine`:
    name and release.
    """

    subject: Subject
    space: HashSpace
    cache_salt: str
    first_hash: BlockHash
    engine: str
    num_messages: int
    num_blocks_stored: int
    was_heard: bool
    others_agree: bool
    roots: Sequence[StoredRoot] = ()
    tokens_note: str = ""
    tokens_agree: bool = False


def cause_of_blocks(missing: MissingBlocks) -> str:
    """Why a prompt's blocks did not appear, as far as what was stored in their place tells.

    Where tokens differ no event is to blame: of the worker's own prompt all may have been cached.
    """
    causes = (_cause_of_root(missing, root) for root in missing.roots)
    if cause := next(filter(None, causes), "") or missing.tokens_note:
        return cause
    if not missing.num_messages:
        what = "its KV events have stopped" if missing.was_heard else "it sends no KV events"
        return f"{what}, though it computes prompts: are they on, and is this its event endpoint?"
    if not missing.num_blocks_stored:
        return "its KV events tell of no stored blocks, though it computes prompts: is prefix caching on?"
    return _cause_of_subject(missing)


def _cause_of_root(missing: MissingBlocks, root: StoredRoot) -> str:
    """What this beginning has to do with the prompt; "" when it is another prompt's."""
    subject = missing.subject
    if _first_hash(missing, root.token_ids) == missing.first_hash:
        if root.adapter != subject.adapter:
            return _cause_of_adapter(subject.adapter, root.adapter, missing.engine)
        return f"blocks of salted prompts come without their salt: {missing.engine} does not tell it"
    if _first_hash(missing, root.token_ids[1:]) == missing.first_hash:
        return f"the worker's prompt starts with token {root.token_ids[0]}, ours does not"
    return ""


def _first_hash(missing: MissingBlocks, token_ids: Sequence[int]) -> BlockHash | None:
    """The hash that these tokens would have in a prompt of the subject; None when they fill no block."""
    space, hashing = missing.space, HASHINGS[missing.space.hashing]
    root = hashing.root(space.base_model, adapter=missing.subject.adapter, cache_salt=missing.cache_salt)
    block_bytes, lookahead_bytes = space.block_tokens * TOKEN_BYTES, space.lookahead_tokens * TOKEN_BYTES
    try:
        packed = pack_tokens(token_ids[: space.block_tokens + space.lookahead_tokens])
    except (OverflowError, TypeError):
        return None
    return next(iter(hashing.chain(packed, block_bytes, root, None, (), lookahead_bytes)), None)


def _cause_of_adapter(adapter: str, told: str, engine: str) -> str:
    if not adapter:
        return f"blocks of the base model come under the name of adapter {told}"
    where = f"they come under {told}" if told else f"{engine} does not tell the adapter"
    return f"LoRA adapter {adapter} has no blocks under its name: {where}"


def _cause_of_subject(missing: MissingBlocks) -> str:
    if missing.others_agree and missing.subject.adapter:
        return f"LoRA adapter {missing.subject.adapter} has no blocks under its name"
    if missing.others_agree and missing.subject.is_salted:
        return f"salted prompts have no blocks under their salt ({missing.engine})"
    what = "the blocks that it stores are not those of the prompts sent to it"
    if missing.tokens_agree:
        return f"{what}, though probes have the same tokens: is this its event endpoint?"
    return f"{what}: its tokenizer or chat template is not the one that we use"


def cause_of_cached(expected: int, reported: int, tokens_note: str) -> str:
    """Why expected and reported cached tokens differ. `tokens_note`: why its tokens do, "" if they don't."""
    if tokens_note:
        return tokens_note
    if reported > expected:
        return (
            f"it reports more cached tokens than its events let expect ({reported} where {expected} were "
            "expected): the index misses blocks of its"
        )
    return (
        f"it reports fewer cached tokens than its events promised ({reported} where {expected} were "
        "expected): are these the events of this worker?"
    )
