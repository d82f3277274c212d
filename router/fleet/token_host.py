"""The fleet as token sources see it. Asked for every request, so answers are kept until the fleet changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from indexer.blocks import HashSpace
from router.core.health import Health
from router.core.routing import RoutingCore
from router.engines import WorkerFacts
from router.fleet.fleet import Fleet
from router.fleet.limits import MODELS_KEPT
from router.metrics import Metrics
from router.tokens import ModelHints, TokenizeTarget


class FleetTokenHost:
    """The TokenHost of the gateway."""

    def __init__(self, core: RoutingCore, fleet: Fleet, metrics: Metrics) -> None:
        self._core = core
        self._fleet = fleet
        self._metrics = metrics
        self._spaces: dict[str, Sequence[HashSpace]] = {}
        self._targets: dict[str, Sequence[TokenizeTarget]] = {}
        self._has_events: dict[str, bool] = {}
        self._models: Mapping[str, ModelHints] | None = None
        fleet.on_change(self._forget)

    def models(self) -> Mapping[str, ModelHints]:
        if self._models is None:
            facts = [member.watch.facts for member in self._fleet.members if member.watch.facts is not None]
            self._models = _hints(facts)
        return self._models

    def on_change(self, listener: Callable[[], None]) -> None:
        """The listener is called after what is kept here was forgotten."""
        self._fleet.on_change(listener)

    def hash_spaces(self, model: str) -> Sequence[HashSpace]:
        if (spaces := self._spaces.get(model)) is None:
            spaces = _keep(self._spaces, model, self._core.hash_spaces(model))
        return spaces

    def tokenize_targets(self, model: str) -> Sequence[TokenizeTarget]:
        """Healthy workers that offer tokenization and serve the model, in the order of the fleet."""
        if (targets := self._targets.get(model)) is None:
            targets = _keep(self._targets, model, self._find_targets(model))
        return targets

    def wants_exact_overlap(self, model: str) -> bool:
        """Whether the policy reads overlap and some worker of the model publishes its KV events."""
        if not self._core.needs.overlap:
            return False
        if (has_events := self._has_events.get(model)) is None:
            has_events = _keep(self._has_events, model, self._find_events(model))
        return has_events

    def fell_back(self, reason: str) -> None:
        self._metrics.token_fallback(reason)

    def _forget(self) -> None:
        self._spaces.clear()
        self._targets.clear()
        self._has_events.clear()
        self._models = None

    def _find_targets(self, model: str) -> list[TokenizeTarget]:
        targets = []
        for member in self._fleet.members:
            # Its ranks share one server: any of them speaks for it.
            facts, view = member.watch.facts, self._core.worker(member.worker_ids[0])
            if facts is None or view is None or view.health is not Health.HEALTHY:
                continue
            if facts.offers_tokenize and view.worker.serves(model):
                spec = member.watch.spec
                targets.append(TokenizeTarget(spec.id, spec.url, facts.engine, member.watch.headers))
        return targets

    def _find_events(self, model: str) -> bool:
        return any(
            view.worker.publishes_events and view.worker.serves(model) for view in self._core.workers()
        )


def _hints(facts: Sequence[WorkerFacts]) -> dict[str, ModelHints]:
    """Of equal names the first vLLM worker's engine counts, else the first worker's; every place is kept
    once."""
    places: dict[str, dict[str, None]] = {}
    engines: dict[str, str] = {}
    for each in facts:
        for model, root in _base_models(each):
            places.setdefault(model, {}).update({root: None, model: None})
            if each.engine == "vllm":
                engines[model] = each.engine
            engines.setdefault(model, each.engine)
    return {model: ModelHints(tuple(found), engines[model]) for model, found in places.items()}


def _base_models(facts: WorkerFacts) -> Iterator[tuple[str, str]]:
    """(name, root) of each entry that is no adapter."""
    for entry in facts.model_entries:
        name, root = entry.get("id"), entry.get("root")
        if isinstance(name, str) and not entry.get("parent"):
            yield name, root if isinstance(root, str) and root else name


T = TypeVar("T")


def _keep(kept: dict[str, T], model: str, answer: T) -> T:
    if len(kept) >= MODELS_KEPT:
        kept.clear()
    kept[model] = answer
    return answer
