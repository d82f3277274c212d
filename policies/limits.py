"""The bounds of this package, each with its reason."""

TURNS_REMEMBERED = 4096
"""Workers whose last turn is known: far above any fleet behind one gateway. One that is forgotten
only gets its next turn early."""
