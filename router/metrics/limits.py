"""The bounds of this package, each with its reason."""

SERIES_MAX = 20_000
"""Label sets of one metric. Past it, new ones are counted under "other": a label that varies too much must
not eat the memory of the gateway. 500 workers x 10 models x 4 statuses fit."""

SLICE_SAMPLES = 300
"""Samples rendered at once: about 2 ms. A fleet of 500 workers has some 35,000, which in one go would hold up
every stream for 0.2 s."""
