import pytest

from estream.models import family_of
from estream.models.published_shapes import SHAPES
from estream.package.expert_use import ExpertUse
from estream.schema import SchemaError, from_plain, to_plain

VALUES = SHAPES["olmoe-1b-7b"]
CONFIG = family_of(VALUES).read_config(VALUES)


def use(layer: int = 0, tokens: float = 10.0, **changed: object) -> dict[str, object]:
    curve = [{"tokens": 1.0, "share": 0.125, "weight": 1.0}, {"tokens": 10.0, "share": 0.5, "weight": 1.0}]
    return {"layer": layer, "tokens": tokens, "chosen": [1.25] * CONFIG.moe.experts, "curve": curve} | changed


def test_round_trip() -> None:
    plain = {"layers": [use(0), use(3)]}
    stored = from_plain(plain, ExpertUse)
    stored.check(CONFIG)
    assert to_plain(stored) == plain


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([use(3), use(3)], "rising order"),
        ([use(16)], "does not belong"),
        ([use(chosen=[1.0] * 3)], "counts 3 experts, the model has 64"),
        ([use(chosen=[12.0] * 64)], "more often than there were tokens"),
        ([use(curve=[{"tokens": 2.0, "share": 0.1, "weight": 1.0}] * 2)], "tokens must rise"),
    ],
)
def test_refused(layers: list[object], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        from_plain({"layers": layers}, ExpertUse).check(CONFIG)
