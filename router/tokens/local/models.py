"""Which tokenizer serves which model: named ones are loaded at the start, others where workers say they lie.

Loading holds the interpreter for up to 0.7 s, once for a model. Nothing that needs the extra is imported
before it is known to be there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

from router.tasks import start_task
from router.tokenizer_files import (
    NothingThere,
    NoTokenizer,
    find_tokenizer,
    missing_packages,
    need_packages,
    read_template,
    split_named,
)
from router.tokens.local.limits import ENCODER_THREADS, MODELS_KEPT
from router.tokens.local.segments import SegmentCache

if TYPE_CHECKING:
    from router.tokens.local.model import LocalModel

_logger = logging.getLogger("kvgate.tokens")


class LocalModels:
    """Base model -> its tokenizer and templates. `threads` are for its users too; whoever made it closes
    it."""

    def __init__(
        self,
        tokenizers: Sequence[str] = (),
        chat_templates: Sequence[str] = (),
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`tokenizers`: places as `find_tokenizer` takes them, for one model as "MODEL=PLACE";
        `chat_templates`: files, likewise. What names no model serves all that have none of their own."""
        self._tokenizers = dict(map(split_named, tokenizers))
        self._templates = dict(map(split_named, chat_templates))
        self._now = now
        self._segments = SegmentCache()
        self._models: dict[str, LocalModel] = {}
        """By base model; "" serves those without one of their own."""
        self._looked_for: dict[str, tuple[str, ...]] = {}
        """Places by base model, as many as the fleet has served."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.threads = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="tokens")

    def load_named(self) -> None:
        """Load what was named, before anything is served. Raises NoTokenizer."""
        if self._tokenizers:
            need_packages()
        for model, place in self._tokenizers.items():
            self._models[model] = self._load(model, place)
            _logger.info("%s: tokens by %s", model or "all models", self._words(model, place))

    def get(self, base_model: str) -> LocalModel | None:
        """The model's own, or that of all; None while there is none."""
        return self._models.get(base_model) or self._models.get("")

    def look_for(self, base_model: str, places: Sequence[str]) -> None:
        """Find and load the model's tokenizer in the background, where it was not looked for yet."""
        wanted = tuple(places)
        is_served = base_model in self._models or "" in self._models
        if is_served or missing_packages() or self._looked_for.get(base_model) == wanted:
            return
        if len(self._models) < MODELS_KEPT:
            self._looked_for[base_model] = wanted
            self._tasks[base_model] = start_task(self._find(base_model, wanted), f"tokenizer of {base_model}")

    def is_looking_for(self, base_model: str) -> bool:
        """Whether its tokenizer is being looked for or loaded."""
        task = self._tasks.get(base_model)
        return task is not None and not task.done()

    def close(self) -> None:
        """What is under way is given up; a thread that encodes finishes unheard."""
        for task in self._tasks.values():
            task.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def _find(self, base_model: str, places: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        for place in places:
            try:
                model = await loop.run_in_executor(self.threads, self._load, base_model, place)
            except NothingThere:
                continue
            except NoTokenizer as error:
                _logger.warning("%s: its tokenizer is of no use here: %s", base_model, error)
                continue
            self._models[base_model] = model
            _logger.info("%s: tokens by %s", base_model, self._words(base_model, place))
            return
        looked_for = " and ".join(places) or "it has no name"
        _logger.info("%s: no tokenizer of it is here (looked for %s)", base_model, looked_for)
        if template := self._template_of(base_model):
            _logger.warning(
                "%s: the chat template %s has no effect without its tokenizer: give --tokenizer",
                base_model, template,
            )  # fmt: skip

    def _load(self, model: str, place: str) -> LocalModel:
        from router.tokens.local.model import load_model

        template = self._template_of(model)
        source = read_template(template) if template is not None else None
        return load_model(find_tokenizer(place), source, self._segments, now=self._now)

    def _template_of(self, model: str) -> str | None:
        """The file that was named for it."""
        return self._templates.get(model) or self._templates.get("")

    def _words(self, model: str, place: str) -> str:
        loaded = self._models[model]
        template = self._template_of(model)
        by = f" with the chat template {template}" if template else ""
        return f"{place}{by}: {loaded.describe()}"
