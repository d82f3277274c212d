"""The bounds of this package, each with its reason."""

RETRY_SECONDS = 1.0
"""Between looks at a worker that does not answer: soon enough that its return is noticed at once, and a probe
a second is nothing to a machine that is up."""

REPROBE_SECONDS = 5.0
"""Between looks at the whole fleet for a model that nobody serves: clients choose the names, and must not
choose our rate."""

MODELS_KEPT = 1000
"""Models whose answers are kept for token sources; the names come from the fleet, or from clients where a
worker takes any."""

CONTROL_SECONDS = 120.0
"""For an engine to carry out an order: offloading a large model's weights takes tens of seconds."""

TOKEN_PARITY_SECONDS = 300.0
"""Between two comparisons of a worker's tokens that agree: templates change with restarts, which are seen."""

TOKEN_PARITY_RETRY_SECONDS = 5.0
"""The same while they differ or could not be compared: a tokenizer is loaded meanwhile, or someone mends
it."""

RUBBISH_MESSAGES = 20
"""So many unreadable messages of a worker, and most of them so, are worth a line: a few are a mistake that
passes."""

WARNINGS_KEPT = 16
"""Different warnings about one worker until it is mended; more would be noise."""
