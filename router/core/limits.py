"""Every bound of the decision core, each with its reason."""

from __future__ import annotations

DECISIONS_KEPT = 256
"""Decisions kept for explanation. One holds a column per input, about 8 KB with 32 candidates: 2 MB in
all."""

PREFIXES_REMEMBERED = 65_536
"""Prefixes whose last worker is remembered for breaking ties: about 10 MB, hours of distinct prompts."""

PREFIX_SEARCH_BLOCKS = 256
"""How many of a prompt's deepest blocks are looked up among those prefixes. A turn of a conversation adds
fewer, and a very long prompt must not cost a walk of its whole length for the sake of a tie."""

POOLS_KEPT = 1024
"""Candidate sets kept ready, one for each model name; workers without a model list accept any name."""

DEFAULT_BLOCK_TOKENS = 16
"""Tokens of a block for workers that do not tell: the default of vLLM on GPUs."""

PRIOR_PREFILL_TOKENS_PER_SECOND = 10_000.0
"""Prefill speed assumed before anything was observed: an 8B model on one data-centre GPU, in order of
magnitude."""

PRIOR_PREFILL_SECONDS = 1.0
"""Weight of that assumption, as if it had been observed for so long."""

PREFILL_SPEED_MEMORY = 0.95
"""What an observation of prefill speed still weighs after one more: about the last twenty count."""

TOKEN_RATIO_MEMORY = 0.98
"""The same for the length of byte prompts in tokens: about the last fifty count."""

TOKEN_RATIO_RANGE = (0.25, 4.0)
"""Real tokens per estimated one. One token a byte is 4; images and tools can distort a single request
further."""

EXPIRY_INTERVAL_SECONDS = 1.0
"""Predictions are swept at least so often while there are any; matching ignores what is out of date
anyway."""

SWEEP_INTERVAL_SECONDS = 0.01
"""Pause between two slices of sweeping a removed worker's blocks, so that requests come in between."""

RELEASES_SLACK = 64
"""Foretold releases of ended requests that may lie about, besides as many as there are active requests."""

PARITY_PATIENCE_SECONDS = 2.0
"""After a request's end, until the blocks of its prompt must have been told of. vLLM publishes with each
step, a busy SGLang with each prefill or forty decodes, which is a second at the most."""

PARITY_SAMPLE_SECONDS = 10.0
"""Between two checks of a worker's blocks for one model once they agree: a change shows within half a minute,
and following one request costs some microseconds."""
