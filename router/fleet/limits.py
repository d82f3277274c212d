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
