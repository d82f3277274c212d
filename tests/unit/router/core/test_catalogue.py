import pytest

from policies.types import ServedModel
from router.core.catalogue import Catalogue, Resolution
from router.errors import ModelRequired, NoWorkers, UnknownModel
from tests.support.columns import make_worker

BASE = make_worker("a", models=(ServedModel("base"), ServedModel("nickname"), ServedModel("lora", "base")))
OTHER = make_worker("b", models=(ServedModel("other"),))
ANY = make_worker("c", models=())


def test_a_name_means_its_worker_s_base_model():
    catalogue = Catalogue([BASE, OTHER])
    assert catalogue.resolve("base") == Resolution("base", "base")
    assert catalogue.resolve("nickname") == Resolution("nickname", "base")
    assert catalogue.resolve("other") == Resolution("other", "other")


def test_an_adapter_is_named_and_hashed_under_its_base_model():
    assert Catalogue([BASE]).resolve("lora") == Resolution("lora", "base", adapter="lora")


@pytest.mark.parametrize("model", [None, ""])
def test_without_a_name_the_only_base_model_is_meant(model):
    assert Catalogue([BASE, BASE]).resolve(model) == Resolution("base", "base")


def test_without_a_name_several_base_models_are_listed():
    with pytest.raises(ModelRequired, match="base, lora, nickname, other"):
        Catalogue([BASE, OTHER]).resolve(None)


def test_an_unknown_model_lists_what_is_served():
    with pytest.raises(UnknownModel, match="'gpt' does not exist; this gateway serves: base, lora, nickname"):
        Catalogue([BASE]).resolve("gpt")


@pytest.mark.parametrize("model", [None, "base"])
def test_without_workers_nothing_is_served(model):
    with pytest.raises(NoWorkers):
        Catalogue([]).resolve(model)


def test_a_worker_that_lists_no_models_takes_any_name():
    catalogue = Catalogue([ANY])
    assert catalogue.resolve("whatever") == Resolution("whatever", "")
    assert catalogue.resolve(None) == Resolution("", "")
    assert catalogue.names == ()
