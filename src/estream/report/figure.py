"""Draws matplotlib figures without a display and saves them as PNG; needs the ``plot`` extra."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from estream.errors import OptionError, PackageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def drawn(path: Path, size: tuple[float, float]) -> Iterator["Figure"]:
    """Yield a figure of ``size`` inches to draw on, and save it to ``path`` at the end of the block.

    Raises:
        OptionError: matplotlib is not installed.
        PackageError: the picture cannot be written.

    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("a picture needs matplotlib: pip install 'estream[plot]'") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise PackageError(f"{path}: the picture cannot be written ({error.strerror})") from error
