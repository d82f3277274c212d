"""The bounds of this package, each with its reason."""

SEGMENT_BYTES = 64 * 1024 * 1024
"""Remembered token ids of texts between special tokens, over all models: some 14 million tokens."""

SEGMENT_ENTRY_BYTES = 240
"""What an entry costs besides its token ids: its digest, the dictionary's row, the objects' heads."""

LOOP_CHARACTERS = 2048
"""New text up to this is encoded on the event loop: 0.5 ms at 0.25 us a character. Longer text leaves it, for
25 us that a thread costs; the encoder lets go of the interpreter meanwhile."""

LOOP_BODY_BYTES = 64 * 1024
"""Messages up to this are read and rendered on the event loop: 0.5 to 4 ms, by their number. A thread helps
only beyond 5 ms, for which it may keep the interpreter."""

LONGEST_BODY_BYTES = 4 * 1024 * 1024
"""Messages or texts beyond this, a million tokens, would take longer than a request waits for its tokens."""

ENCODER_THREADS = 2
"""Threads that encode. More would take the cores from the loop and from each other."""

WAITING_PROMPTS = 64
"""Prompts that may wait for a thread; one more is routed without its tokens rather than late."""

MODELS_KEPT = 8
"""Base models whose tokenizers are loaded; one takes 15 to 230 MiB."""
