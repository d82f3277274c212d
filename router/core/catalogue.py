"""Which models the fleet serves, and which one a request means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policies.types import ServedModel, Worker
from router.errors import ModelRequired, NoWorkers, UnknownModel


@dataclass(frozen=True, slots=True)
class Resolution:
    """The name to route by, the base model that seeds the block hashes, and the adapter ("" if none)."""

    model: str
    base_model: str
    adapter: str = ""


class Catalogue:
    """The names under which workers answer. A worker without a list of models takes any name."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        workers = list(workers)
        self._base_models = {worker.base_model for worker in workers}
        self._accepts_any = any(not worker.models for worker in workers)
        self._by_name: dict[str, Resolution] = {}
        for worker in workers:
            for model in worker.models:
                self._by_name.setdefault(model.name, _resolution(worker, model))
        self.names: tuple[str, ...] = tuple(sorted(self._by_name))

    def resolve(self, model: str | None) -> Resolution:
        """What `model` means; None or "" means the only base model.

        Raises NoWorkers without any worker, ModelRequired when there are several base models to choose from,
        UnknownModel (which lists the names) when nobody serves it.
        """
        if not self._base_models:
            raise NoWorkers("No worker is available yet")
        if not model:
            return self._only_base_model()
        if known := self._by_name.get(model):
            return known
        if self._accepts_any:
            return Resolution(model, base_model="")
        raise UnknownModel(model, self.names)

    def adapter_of(self, model: str) -> str:
        """The adapter that a name stands for; "" for a base model."""
        known = self._by_name.get(model)
        return known.adapter if known else ""

    def _only_base_model(self) -> Resolution:
        if len(self._base_models) > 1:
            raise ModelRequired(self.names)
        (base_model,) = self._base_models
        return Resolution(base_model, base_model)


def _resolution(worker: Worker, model: ServedModel) -> Resolution:
    adapter = "" if model.parent is None else model.name
    return Resolution(model.name, worker.base_model, adapter)
