"""The bounds of this package, each with its reason."""

SLICE_MICROSECONDS = 2000.0
"""Longest stretch of estimated work before other tasks get a turn: streams must not be seen to stutter."""

BLOCK_MICROSECONDS = 0.25
"""One block hashed. Measured 0.13 for 16 tokens, 0.16 for 128, on 2 idle cores; busy ones are slower."""

BLOCKS_PER_SEGMENT = 64
"""Hashed, kept and found again together: 1 us to look up, 7 us to hash."""

SEGMENTS_KEPT = 4096
"""About 2.7 KB each: 11 MB for the beginnings of some 500 prompts of 8,192 tokens."""

BLOCKS_PER_BEGINNING = 176
"""The same for texts, whose blocks widen: at most a MiB in blocks of 64 bytes, 0.1 ms to hash."""

BEGINNINGS_KEPT = 2048
"""At most 7 KB each: 14 MB."""

BYTE_MICROSECONDS = 0.0002
"""One byte of a long text hashed. Measured 0.00001 to 0.0001."""

ROOT_SEEDS_KEPT = 4096
"""One for each model, adapter and cache salt of late: 1 MB. Making one takes 3 us."""

TOKEN_MICROSECONDS = 0.04
"""One token id decoded from JSON and packed. Measured 0.024, as above."""

JSON_PIECE_BYTES = 32 * 1024
"""Token ids are decoded in pieces of about this much JSON: some 5,000 ids, 0.2 ms."""

TOKENIZE_SECONDS = 2.0
"""All that a request waits for its tokens, queueing included. Engines answer in 1 to 50 ms."""

TOKENIZE_CALLS_PER_WORKER = 4
"""Tokenization shares the worker's API process with its requests; more at once only queue there."""

ANSWER_BYTES_PER_REQUEST_BYTE = 16
"""A token covers at least one byte of the request, and takes at most some 10 bytes in the answer."""

ANSWER_BYTES_BASE = 1024 * 1024
"""What a chat template may add on its own, with much room."""

CACHE_BYTES = 64 * 1024 * 1024
"""Cached tokens and block hashes: about 800 prompts of 8,192 tokens."""

HASH_BYTES = 40
"""A block hash in a list: 32 bytes of integer, 8 of reference."""

ENTRY_BYTES = 500
"""What an entry of the cache costs besides its tokens and hashes."""

CHAINS_PER_ENTRY = 4
"""Hash spaces and salts kept for one cached prompt: one repeated under ever new salts must not pile up."""
