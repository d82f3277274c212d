"""The bounds of this package, each with its reason."""

SEGMENT_BYTES = 64 * 1024 * 1024
"""Remembered token ids of texts between special tokens, over all models: some 14 million tokens."""

SEGMENT_ENTRY_BYTES = 240
"""What an entry costs besides its token ids: its digest, the dictionary's row, the objects' heads."""

LOOP_CHARACTERS = 2048
"""New text up to this is encoded on the event loop: 0.6 ms at 0.3 us a character, where a thread costs 0.1 ms
of its own and waits for its turn. Longer text leaves the loop."""

LOOP_BODY_BYTES = 64 * 1024
"""Messages up to this are read and rendered on the event loop: 1 ms at the most with the templates of
today."""

ENCODER_THREADS = 2
"""Threads that encode. The encoder lets go of the interpreter meanwhile; more would only queue for the
cores."""

WAITING_PROMPTS = 64
"""Prompts that may wait for a thread; one more is routed without its tokens rather than late."""

MODELS_KEPT = 8
"""Base models whose tokenizers are loaded; one takes 50 to 300 MB."""
