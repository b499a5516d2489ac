"""Tiles: a graph takes a fixed number of rows, so a few graphs cover the rows of an expert, as cheaply as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The cost of a call where no device was measured: memory traffic at the rate of a phone's LPDDR5X-4800 on 64 bits (76.8 GB/s)
#: and fp16 products at 4 TFLOPS. Both are assumptions. They weigh another call against empty rows: at 4 bits a call costs as
#: much as 15 rows.
BYTES_PER_S = 76.8e9
FLOPS = 4e12


@dataclass(frozen=True)
class Tile:
    """A graph of ``rows`` rows; ``cost`` is that of one call, in seconds."""

    rows: int
    cost: float


def written_cost(rows: int, traffic: int, weights: int) -> float:
    """Seconds of one call that moves ``traffic`` bytes, and multiplies ``rows`` rows by each of ``weights`` weights."""
    return traffic / BYTES_PER_S + 2.0 * rows * weights / FLOPS


def measured_tiles(seconds: Mapping[int, float]) -> tuple[Tile, ...]:
    """Tiles by the seconds that a device took for each number of rows."""
    return tuple(Tile(rows, cost) for rows, cost in sorted(seconds.items()))


class TileCover:
    """The cheapest tiles that cover n rows, for any n: together they have n rows or more.

    ``cost(n) = min over tiles of cost(n - rows) + tile cost``, computed once for each n, from 1 up. Of equal costs the tiles
    with fewer rows are taken.
    """

    def __init__(self, tiles: Sequence[Tile]) -> None:
        if not tiles or min(tile.rows for tile in tiles) < 1:
            raise ValueError("a cover needs tiles of at least one row")
        self.tiles = tuple(sorted(tiles, key=lambda tile: tile.rows))
        #: For each count: cost, rows and the last tile of its cover.
        self._best: list[tuple[float, int, int]] = [(0.0, 0, 0)]

    @property
    def largest(self) -> int:
        return self.tiles[-1].rows

    def of(self, count: int) -> tuple[int, ...]:
        """Rows of each tile that covers ``count`` rows. The largest come first, so only the last one is partly empty."""
        self._extend(count)
        found = []
        while count > 0:
            rows = self._best[count][2]
            found.append(rows)
            count -= rows
        return tuple(sorted(found, reverse=True))

    def rows(self, count: int) -> int:
        """Rows that the tiles of ``count`` rows compute."""
        self._extend(count)
        return self._best[count][1]

    def _extend(self, count: int) -> None:
        while (n := len(self._best)) <= count:
            before = ((self._best[max(0, n - tile.rows)], tile) for tile in self.tiles)
            self._best.append(min((cost + tile.cost, rows + tile.rows, tile.rows) for (cost, rows, _), tile in before))


@dataclass
class TileCount:
    """Rows that were routed to experts, rows that tiles computed for them, and calls."""

    routed: int = 0
    computed: int = 0
    calls: int = 0

    def add(self, count: int, tiles: Sequence[int]) -> None:
        self.routed += count
        self.computed += sum(tiles)
        self.calls += len(tiles)

    @property
    def waste(self) -> float:
        """The share of the computed rows that were not routed."""
        return 1.0 - self.routed / self.computed if self.computed else 0.0
