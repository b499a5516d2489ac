"""A PNG chart of predicted TTFT against memory; needs the ``plot`` extra."""

from collections.abc import Sequence
from pathlib import Path

from estream.host.sizes import GiB
from estream.report.figure import drawn


def draw_budgets(rows: Sequence[tuple[int, float, float]], tokens: int, path: Path) -> None:
    """Draw rows (budget in bytes, TTFT of a fresh model, TTFT of a later sweep) with rising budgets; times in seconds.

    Raises:
        OptionError: matplotlib is not installed.
        PackageError: the picture cannot be written.

    """
    with drawn(path, (9, 5)) as figure:
        axes = figure.subplots()
        budgets = [budget / GiB for budget, _, _ in rows]
        axes.plot(budgets, [first for _, first, _ in rows], "o-", color="#3b6ea5", label="fresh model")
        axes.plot(budgets, [later for _, _, later in rows], "s--", color="#c8553d", label="again, pinned pages in memory")
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, [f"{b:.2g}" for b in budgets])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("memory budget, GiB")
        axes.set_ylabel("predicted TTFT, seconds")
        axes.set_title(f"{tokens} tokens: predicted TTFT against memory", loc="left")
        axes.grid(alpha=0.3)
        axes.legend()
