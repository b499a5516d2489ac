"""Covers of token counts by tiles: cheapest, complete, and with few rows for nothing at real shapes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estream.devices.qnn.tiles import Tile, TileCount, TileCover, written_cost

HIDDEN, WIDTH, EXPERTS, TOP_K = 2048, 1024, 64, 8


def _cheapest(tiles: list[Tile], count: int) -> float:
    """Every multiset of tiles that is not longer than it can be of use."""
    most = -(-count // min(tile.rows for tile in tiles))
    sets = (s for n in range(most + 1) for s in itertools.combinations_with_replacement(tiles, n))
    return min(sum(tile.cost for tile in s) for s in sets if sum(tile.rows for tile in s) >= count)


@given(
    sizes=st.sets(st.integers(2, 9), min_size=1, max_size=3),
    costs=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    count=st.integers(0, 14),
)
def test_no_other_tiles_are_cheaper(sizes, costs, count):
    tiles = [Tile(rows, float(cost)) for rows, cost in zip(sorted(sizes), costs, strict=False)]
    cover = TileCover(tiles)
    found = cover.of(count)
    cost = {tile.rows: tile.cost for tile in tiles}
    assert sum(found) >= count
    assert sum(found) == cover.rows(count)
    assert list(found) == sorted(found, reverse=True)
    assert sum(cost[rows] for rows in found) == pytest.approx(_cheapest(tiles, count))
    # Only the last one is partly empty.
    assert sum(found[:-1]) < max(count, 1)


def test_tiles_must_hold_rows():
    with pytest.raises(ValueError, match="at least one row"):
        TileCover([])


def _tiles() -> list[Tile]:
    graph_sizes = pytest.importorskip("estream.conversion.npu.graph_sizes")
    weights = 3 * HIDDEN * WIDTH
    rows = next(shape["sizes"]["tiles"] for name, shape in graph_sizes.table()["shapes"].items() if name.startswith("olmoe"))
    return [Tile(n, written_cost(n, weights * 9 // 16 + 6 * n * HIDDEN, weights)) for n in rows]


def _counts(tokens: int, popularity: np.ndarray, seed: int) -> np.ndarray:
    """Tokens that choose ``TOP_K`` different experts each, by Gumbel's trick."""
    noise = np.random.default_rng(seed).gumbel(size=(tokens, EXPERTS))
    chosen = np.argsort(-(np.log(popularity) + noise), axis=1)[:, :TOP_K]
    return np.bincount(chosen.reshape(-1), minlength=EXPERTS)


@pytest.mark.parametrize(("tokens", "most"), [(1024, 0.07), (256, 0.22)])
@pytest.mark.parametrize("routing", ["uniform", "skewed"])
def test_few_rows_are_computed_for_nothing(tokens, most, routing, record_property):
    """The shape of OLMoE. Skewed: popularity falls as 1 / rank^0.8, the most popular expert gets ten times the least's."""
    rank = np.arange(EXPERTS) + 3.0
    popularity = np.ones(EXPERTS) / EXPERTS if routing == "uniform" else rank**-0.8 / np.sum(rank**-0.8)
    cover, total = TileCover(_tiles()), TileCount()
    for seed in range(20):
        for count in _counts(tokens, popularity, seed):
            total.add(int(count), cover.of(int(count)))
    record_property("waste", total.waste)
    assert total.waste <= most
