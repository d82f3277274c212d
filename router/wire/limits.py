"""Bounds of the wire parsers, each with its reason."""

SSE_EVENT_BYTES_MAX = 1 << 20
"""One event held until it is whole. Token events have some 300 bytes; the closing event of a `responses`
stream repeats the whole answer. Beyond this the event is counted unread."""

LENIENT_BYTES = 256 * 1024
"""Longest body that is read leniently: up to 25 ms with that reader, during which all streams wait."""

MODEL_SEARCH_BYTES = 4096
"""How far into a body that is not read its model is looked for: clients write it near the start."""

FORM_SCAN_BYTES = 64 * 1024
"""How much is searched at each end of a multipart form: clients write fields before or after the file."""

MODEL_BYTES_MAX = 1024
"""Longest name that is read of a form; names of models are far shorter."""
