"""Numbers that are none: an answer with NaN or infinity is none. Where they are found, the layer they come from is named."""

import numpy as np

from estream.errors import NumericError


def is_finite(rows: np.ndarray) -> bool:
    """Whether all values [rows, columns] are finite. NaN goes through a maximum, and nothing is allocated."""
    return all(map(_is_finite_row, rows))


def _is_finite_row(row: np.ndarray) -> bool:
    return bool(np.isfinite(row.max()) and np.isfinite(row.min()))


def refuse(rows: np.ndarray, place: str) -> None:
    """Raises NumericError where a value is not finite; ``place`` says where it was computed."""
    for number, row in enumerate(rows):
        if not _is_finite_row(row):
            raise no_number(place, number)


def no_number(place: str, row: int) -> NumericError:
    """The error about a row of the batch that holds a value which is not finite."""
    return NumericError(
        f"{place} gives a value that is no finite number (NaN or infinity) in row {row} of the batch: the package's "
        "weights are damaged, or too large for this model; 'estream verify' checks them, and converting again makes "
        "others"
    )
