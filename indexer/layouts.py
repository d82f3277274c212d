"""How one worker cuts its blocks, learnt from its events, against how its prompts are cut.

A worker's blocks are hashed as its own events cut them, so what it holds does not depend on what was expected
of it.
"""

from __future__ import annotations

from indexer.blocks import Layout
from indexer.events import BlockStored, Tier


class LayoutWatch:
    """`expected`: how prompts are cut; None while nobody knows. `known`: how the worker cuts its blocks, as
    the device's first event said. `mismatch`: in words, why no prompt will match what it stores; empty when
    prompts may."""

    def __init__(self, expected: Layout | None) -> None:
        self.expected = expected
        self.known: Layout | None = None
        self.mismatch = ""
        self._is_mains = False
        self._mixture = ""

    def expect(self, layout: Layout) -> None:
        """From now on prompts are cut like this."""
        self.expected = layout
        self._compare()

    def resume(self, layout: Layout) -> None:
        """It was known before, from blocks that are held again."""
        self.known, self._is_mains = layout, True
        self._compare()

    def forget(self) -> None:
        """Another engine process, which may cut otherwise."""
        self.known = None
        self._is_mains = False
        self._mixture = ""
        self._compare()

    def is_known(self, event: BlockStored) -> bool:
        """Whether the event's blocks are cut as we know already: nearly always."""
        return self.known == (event.block_tokens, event.lookahead_tokens)

    def take(self, event: BlockStored, *, is_main: bool, is_hybrid: bool) -> bool:
        """Whether the event's blocks are cut like the others. On the device two kinds of cuts are too many;
        another tier may cut as it likes, but then no prompt will match.

        `is_main`: they are of the group that prompts are matched with first, `is_hybrid`: there are others.
        """
        layout = Layout(event.block_tokens, event.lookahead_tokens)
        if event.tier is Tier.DEVICE and (self.known is None or is_main > self._is_mains):
            self.known, self._is_mains = layout, is_main
            self._compare()
        reference = self.known or self.expected
        if reference is None or layout == reference:
            return True
        if event.tier is Tier.DEVICE and is_main:
            return self._take_longest(layout, reference) if is_hybrid else self._note(layout, reference)
        return False

    def _compare(self) -> None:
        self.mismatch = self._mixture
        if not self._mixture and self.expected is not None and self.known not in (None, self.expected):
            stored, prompts = _in_words(self.known), _in_words(self.expected)
            self.mismatch = f"worker stores blocks of {stored}, prompts are cut into blocks of {prompts}"

    def _take_longest(self, layout: Layout, reference: Layout) -> bool:
        """The main group of a hybrid model stores the end of a prompt as a block of its own, shorter than the
        others, which are the ones that count."""
        if layout.block_tokens > reference.block_tokens:
            self.known = layout
            self._compare()
        return layout.block_tokens > reference.block_tokens

    def _note(self, layout: Layout, reference: Layout) -> bool:
        self._mixture = f"worker stores blocks of {_in_words(reference)} and of {_in_words(layout)}"
        self._compare()
        return False


def _in_words(layout: Layout) -> str:
    size = f"{layout.block_tokens} tokens"
    return f"{size} hashed with the {layout.lookahead_tokens} after them" if layout.lookahead_tokens else size
