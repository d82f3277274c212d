"""Every bound of this package, each with its reason."""

from __future__ import annotations

INDEX_SHARDS = 256
"""A dict pauses 25 ms when it grows past 350,000 entries and 85 ms past 1.4 million; 256 shards keep a shard
of 20 million blocks below 80,000 entries and its growth below 2 ms. A power of two."""

KEY_SHARDS = 64
"""The same for one worker's engine hashes: up to 5 million blocks per worker and tier. A power of two."""

LOOSE_ENTRY_BYTES = 72
"""A dict with more bytes an entry is copied: by growth alone it never has more than 60, while entries that
come and go leave it at up to 108. The copy takes 30 ns an entry, once for as many changes."""

INDEX_BYTES = 4 << 30
"""Of exact index and engine hashes, unless configured: some 20 million blocks, of a hundred workers with 3
million tokens each, and a share that machines which run a gateway for those can spare."""

EVICTION_BLOCKS = 256
"""Blocks given up in one step when the index is too large: 0.3 ms."""

EVICTION_RUNS = 8
"""Runs looked at in one step: conversations that are too old end together."""

EVICTION_SHARD_SHARE = 8
"""Of a shard's runs no more than this share is looked at in one step, else small shards lost their order."""

SWEEP_BLOCKS = 10_000
"""Blocks looked at in one sweep slice: about 1 ms."""

PREDICTED_BLOCKS_PER_SLOT = 262_144
"""Blocks believed of a worker whose capacity is unknown: 40 MB at 150 bytes each; 4 million tokens of 16."""

BYTE_DOUBLINGS = 32
"""How often a byte prompt's blocks may widen: beyond 2**36 of the workers' blocks it has no more of them."""

BLOCK_SIZES_CUT = 16
"""Block sizes for which the places are kept at which byte prompts are cut; a fleet has one or two."""

EPOCH_TTL_SHARE = 32
"""An epoch of predictions lasts this share of their time to live: 4 s of 120."""

EPOCH_CAPACITY_SHARE = 8
"""And ends when this share of the worker's capacity was used in it: so far may an eviction be from the least
recently used."""

EXPIRE_BLOCKS = 10_000
"""Predicted blocks whose memory is given back in one call: about 3 ms. What is due but still there never
matches."""

PAYLOAD_BYTES = 64 << 20
"""Of one message: a million tokens of context in blocks of 16 with 32-byte hashes is 9 MB."""

EVENT_BLOCKS = 1 << 20
"""Block hashes of one event; the longest contexts are a million tokens, of at least one token a block."""

EVENT_TOKENS = 1 << 22
"""Token ids of one event: four times the longest contexts."""

NAMESPACES = 4_096
"""Root seeds kept per publisher, one for each adapter and cache salt seen: 0.5 MB. They are only a cache."""

SALTED_BLOCKS = 65_536
"""Blocks of salted prompts whose salt is remembered per publisher, under hashes that need it for each: 8 MB.
What follows one that is forgotten is hashed without the salt and matches nothing."""

BUFFERED_MESSAGES = 1_000
"""Live messages held back per publisher during a replay. They are released in one step, of 0.1 s at the
worst; what does not fit is asked for again."""

BUFFERED_BYTES = 16 << 20
"""The same in bytes: with 100 workers replaying at once, 1.6 GB at the worst."""

REPLAY_ATTEMPTS = 3
"""Replays asked for in a row before a worker's blocks are dropped and learnt anew from live events."""

DIGESTS = 256
"""Digests of the last messages kept per publisher (10 KB): how far back a repeated message is known again."""

LATE_MESSAGES = 64
"""Messages in a row older than our position that are dropped as late. One more, and the stream is taken to
have begun anew: somebody had sent a number far ahead."""

DRAIN_SECONDS = 0.002
"""Time for which one event socket may hold the event loop before others get their turn: a streamed token
waits no longer than that. About 150 messages."""

RECEIVE_QUEUE_MESSAGES = 100_000
"""Messages that ZMQ may hold for us: as many as vLLM's publisher holds at its end. Beyond it messages are
lost, which shows as a gap."""

REPLAY_SILENCE_SECONDS = 5.0
"""A replay that brings nothing for so long has failed. The engine answers within 0.1 s and then without a
pause; its end marker may be lost."""

HEARTBEAT_SECONDS = 5.0
"""Between pings on the event connection, and how long an answer may take thrice over: a peer that vanished
without closing is noticed within 20 s."""

RECONNECT_SECONDS_MAX = 2.0
"""Attempts to connect back off from 0.1 s to this: a worker that came back is heard soon."""

ORPHAN_MESSAGES = 1_000
"""Messages for which a stored event waits for its parent. A parent that another tier announces comes within a
few; one that was lost never comes, unless its prompt is computed anew."""

ORPHAN_BLOCKS = 16_384
"""Blocks that wait, per publisher: 262,144 tokens of 16 a block, two of the longest common contexts."""

ORPHAN_BYTES = 16 << 20
"""The same in bytes: with 100 workers in trouble at once, 1.6 GB at the worst."""

ORPHAN_EVENT_BYTES = 200
"""Estimated for a block that waits, besides its tokens: its names as integers, two dict entries."""

ORPHAN_TOKEN_BYTES = 40
"""Of a decoded token id in a list."""

GROUPS = 64
"""KV-cache groups of a model that are kept apart. Models of today have up to eight; the rest is counted."""

DISAGREEMENTS_TO_LOWER = 3
"""Observations in a row against a worker before it is said to differ: one can be an eviction in between, or
an event that was late."""

AGREEMENTS_TO_RAISE = 2
"""Observations in a row for a worker that was said to differ before it is believed again. Hashes do not agree
by chance; two show that it was not one kind of prompt alone."""

LEARNT_BLOCKS_PER_SLOT = 32_768
"""Blocks believed of one worker because its engine reported them as cached: 5 MB; half a million tokens of
16, more than one GPU holds of most models."""

STORED_ROOTS_KEPT = 8
"""Beginnings of stored prompts kept while a check waits: as many requests as may reasonably store in between.
Each holds one block and one token: 1 KB."""

CLEAR_ECHO_MESSAGES = 8
"""Live messages that may still tell of the time before a reset that the engine confirmed: it was idle, so
little was on its way. Of an engine that never announces its reset so many messages are lost."""

PARITY_SUBJECTS = 64
"""Models and adapters of one worker whose checks are kept apart; the one that was checked least recently
goes."""

SERVICE_BODY_BYTES = 3 << 20
"""Of one call to the index server: half a million token ids, which take 14 ms to read. Longer prompts can be
asked for by their block hashes."""

SERVICE_HEAD_SECONDS = 10.0
"""For the first head on a connection to the index server or the admin port, as on the public port."""

SERVICE_IDLE_SECONDS = 75.0
"""Between two requests there: more than the minute at which metrics are scraped at the slowest, usually."""

SERVICE_BODY_SECONDS = 30.0
"""For a body there: the largest, at a megabyte a second and more."""

QUERY_SLICE_TOKENS = 65_536
"""Token ids of a query that are hashed at once: 2 ms."""

SERVICE_WORKERS = 1_024
"""Workers that one index server follows: each has two sockets, and a descriptor limit of 4,096 is common."""

REFUSED_SECONDS = 5.0
"""Between attempts to open an event endpoint that was refused: a port is free again soon after its holder has
ended, an attempt is a system call."""

TICK_SECONDS = 0.05
"""Between looks at what the index server has to clear away."""

SNAPSHOT_SECTION_BLOCKS = 4_096
"""Blocks that are written or loaded in one go: 2 ms."""

SNAPSHOT_SECTION_BYTES = 1 << 24
"""Of one section: no writer of ours makes one beyond 64 bytes for each of its blocks."""

SNAPSHOT_FETCH_BYTES = 2 << 30
"""Of a peer's snapshot: a hundred million blocks at 20 bytes."""

SNAPSHOT_FETCH_SECONDS = 30.0
"""How long a peer may take; a start waits no longer for it."""

WITHDRAWN_BLOCKS = 32_768
"""Blocks of one worker and tier remembered as withdrawn, since its engine reported less: 3 MB. With more, a
snapshot leaves that tier out."""

SNAPSHOT_WAIT_SECONDS = 600.0
"""For which a worker of a snapshot is waited for: an engine's replay buffer reaches back little further."""
