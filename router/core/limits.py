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

PREFILL_PRIOR = (15.0, 0.1, 2e-7)
STEP_PRIOR = (20.0, 0.1, 2e-5)
"""Milliseconds assumed before anything was observed: for a prompt, a new token, a pair of tokens; for a
decode step, a stream, a resident token. A 70B model on eight data-centre GPUs is twice as fast. On the slow
side: in simulation a prior three times too slow cost 4 % more time to the first token at most, one five times
too fast 15 %."""

BATCHED_TOKENS = 8192
"""Prefill tokens in one step: vLLM's default on large GPUs. Engines do not tell."""

MEMORY_FILLED = 0.99
"""The part of a worker's memory that engines fill before they let prompts wait."""

MEAN_OUTPUT_START = 200.0
MEAN_OUTPUT_WEIGHT = 0.01
"""The length of an answer before any has ended, and the weight of one more: about the last hundred count."""

ARRIVALS_SECONDS = 20.0
"""Over which arrivals are counted: long enough for a rate, short enough to follow a burst's end."""

FIRST_TOKENS_TOGETHER_SECONDS = 0.002
"""First tokens of one worker that come together were computed in one step, and are one sample."""

SHAPE_MEMORY = 0.9995
"""What a sample of the fleet still weighs after one more: about the last two thousand count."""

SHAPE_SOLVED_ALWAYS = 50
SHAPE_SOLVED_EACH = 16
"""The first samples are worth solving for one by one; later it costs more than it brings."""

RIDGE_START = 10.0
RIDGE_FLOOR = 0.0003
"""Weight of the prior's shape, as a part of the mean square of the samples: it fades with their number. A
part that stays the same was too much for one engine or too little for another."""

FACTOR_MEMORY = 0.98
"""What a sample of one worker still weighs after one more: about the last fifty count."""

FACTOR_PRIOR_WEIGHT = 20.0
"""Weight of the factor 1, in samples."""

FACTOR_SECONDS = 60.0
"""After so long without samples what was learnt of one worker weighs a third."""

FACTOR_RANGE = (0.125, 8.0)
"""Beyond this a worker is broken, not slow."""

SAMPLE_BASE_MS = 50.0
SAMPLE_TOKEN_MS = 0.05
"""About what a prefill takes: samples are weighed by it, so that no long prompt outweighs all others."""

STEP_SAMPLE_MS = 20.0
"""About what a decode step takes; the same for its samples."""

OUTLIER_FACTOR = 4.0
OUTLIER_PREFILL_MS = 50.0
OUTLIER_STEP_MS = 20.0
"""A sample is cut at so many times what was predicted, and some milliseconds: pauses are not speed."""

STEPS_FOR_A_SAMPLE = 4
"""One decode step in so many is a sample: there are plenty."""

OBSERVED_STEP_WEIGHT = 0.02
"""Of one more gap in the mean gap between tokens."""

TIMES_KEPT_SECONDS = 1.0
"""For which a worker's coefficients stand while it shows nothing: they relax over a minute."""

TRANSFER_PRIOR = (10.0, 0.01, 0.0)
"""Milliseconds for a hand-over and for each token of it before any was seen: 128 KiB a token (an 8B model
with grouped heads in 16 bits) over 100 Gbit/s. On the quick side: a slow network shows with the first
hand-overs, but one that is never tried shows nothing."""

TRANSFER_MEMORY = 0.9
"""What a hand-over still weighs after one more: about the last ten count. Samples are cut at a multiple of
what is known, so that the first ones on a network that became slow say too little: to be forgotten soon."""

TRANSFER_SAMPLE_MS = 20.0
"""About what a hand-over takes besides its length: samples are weighed by it."""

TRANSFER_SECONDS = 120.0
"""After so long without hand-overs what they taught weighs a third. A network that takes a hundred times the
prior is tried again after some five minutes, with one prompt."""

TRANSFER_FIRST_SAMPLES = 3
TRANSFER_SLOW = (50.0, 3.0, 0.0)
"""The first hand-overs are believed up to what 1 Gbit/s takes for a 70B model, so that a slow network is left
alone after one; with a cut at a multiple of the prior it took ten."""

TRANSFER_GRACE_SECONDS = 1.0
"""Before the first hand-over has arrived, one under way shows a slow network by being late by more than this:
a decode step or a prompt of the decode worker's own may be in their way."""

TRANSFER_BUSY_WEIGHT = 0.1
"""Of a hand-over that may have waited for a prompt of the decode worker's own: it says too much, but is
better than nothing where that is the rule."""

STALL_WEIGHT = 0.1
"""How much a millisecond of each stream that a prefill stalls weighs against one of the first token: the
`balanced` goal of the latency policy."""
