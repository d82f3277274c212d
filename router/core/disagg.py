"""Whether a prompt is computed on a prefill worker or where it is decoded: one rule, without state.

Which workers are asked, and what is booked on them, is the business of `pairing` and `routing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cache

from policies.types import Verdict


class Mode(StrEnum):
    """What decides. AUTO compares predicted times; until there are any it decides as CONDITIONAL does."""

    CONDITIONAL = "conditional"
    ALWAYS = "always"
    NEVER = "never"
    AUTO = "auto"


class Reason(StrEnum):
    """Why, as metrics and explanations name it; docs/disaggregation.md says more of each."""

    ALWAYS = "always"
    LONG_PROMPT = "long_prompt"
    LITTLE_CACHED = "little_cached"
    DECODE_FULL = "decode_full"
    FASTER_REMOTE = "faster_remote"
    CANNOT_PREFILL = "cannot_prefill"

    NEVER = "never"
    WELL_CACHED = "well_cached"
    PREFILL_BUSY = "prefill_busy"
    FASTER_LOCAL = "faster_local"
    NO_PROMPT = "no_prompt"
    STAYS_WHOLE = "stays_whole"
    NO_PREFILL_WORKER = "no_prefill_worker"
    RETRIED = "retried"
    PREFILL_FAILED = "prefill_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggRules:
    """What the operator decides once. The two thresholds have Dynamo's names and defaults
    (`eff_isl_threshold`, `eff_isl_ratio_threshold`).

    `prefill_busy_tokens`: local when each prefill worker has at least so many prompt tokens booked; None:
    never for that. `decode_usage_max`: never local when the decode worker's active blocks, this request's
    included, take more than that share of its capacity, or when that is not known; None: not looked at.
    `fallback`: a prompt that no prefill worker computes is computed by the decode worker.
    """

    mode: Mode = Mode.CONDITIONAL
    min_tokens: int = 2048
    ratio: float = 0.7
    prefill_busy_tokens: int | None = None
    decode_usage_max: float | None = None
    fallback: bool = True

    @property
    def needs_overlap(self) -> bool:
        """Whether what decode workers hold has to be known, whatever their policy reads."""
        return self.mode in (Mode.CONDITIONAL, Mode.AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one verdict rests on. Tokens; `cached_tokens` of the decode worker, slower tiers by weight.

    `prefill_backlog_tokens`: of the prefill worker with the least. `decode_usage`: share of the decode
    worker's blocks that would be active with this request, None where its capacity is not known. `times_ms`:
    predicted `local` and `remote` among them; None where times are not predicted.
    """

    prompt_tokens: int
    cached_tokens: float
    prefill_backlog_tokens: int = 0
    decode_usage: float | None = None
    times_ms: dict[str, float] | None = None


def decide(rules: DisaggRules, facts: Facts) -> Verdict:
    """The verdict where both ways are open."""
    effective = max(0.0, facts.prompt_tokens - facts.cached_tokens)
    is_remote, reason = _decide(rules, facts, effective)
    return Verdict(
        is_remote=is_remote,
        reason=reason,
        mode=rules.mode,
        effective_tokens=effective,
        times_ms=facts.times_ms or {},
    )


def forced(rules: DisaggRules, facts: Facts, *, is_remote: bool, reason: Reason) -> Verdict:
    """The verdict where only one way is open."""
    effective = max(0.0, facts.prompt_tokens - facts.cached_tokens)
    return Verdict(is_remote=is_remote, reason=reason, mode=rules.mode, effective_tokens=effective)


def _decide(rules: DisaggRules, facts: Facts, effective: float) -> tuple[bool, Reason]:
    if rules.mode is Mode.ALWAYS:
        return True, Reason.ALWAYS
    if rules.mode is Mode.NEVER:
        return False, Reason.NEVER
    if _is_too_full(rules, facts):
        return True, Reason.DECODE_FULL
    if facts.prompt_tokens <= 0:
        return False, Reason.NO_PROMPT
    busy = rules.prefill_busy_tokens
    if busy is not None and facts.prefill_backlog_tokens >= busy:
        return False, Reason.PREFILL_BUSY
    if rules.mode is Mode.AUTO and facts.times_ms:
        is_remote = facts.times_ms["remote"] < facts.times_ms["local"]
        return is_remote, Reason.FASTER_REMOTE if is_remote else Reason.FASTER_LOCAL
    return _by_length(rules, facts.prompt_tokens, effective)


def _is_too_full(rules: DisaggRules, facts: Facts) -> bool:
    most = rules.decode_usage_max
    return most is not None and (facts.decode_usage is None or facts.decode_usage > most)


def _by_length(rules: DisaggRules, prompt_tokens: int, effective: float) -> tuple[bool, Reason]:
    """Local iff both are strictly below their threshold, as Dynamo's `isl_bounding` has it: cached enough,
    not short enough."""
    if effective >= rules.min_tokens:
        return True, Reason.LONG_PROMPT
    # 0.7 has no exact float, and a prompt at the threshold is not below it: the ratio is what was written.
    if effective >= _exactly(rules.ratio) * prompt_tokens:
        return True, Reason.LITTLE_CACHED
    return False, Reason.WELL_CACHED


@cache
def _exactly(ratio: float) -> Fraction:
    return Fraction(str(ratio))
