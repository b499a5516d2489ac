"""A page where it lies, and the products and norms that bind to its parts."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from estream import _native
from estream.devices.cpu.activations import Activations, QuantizedArrays
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec
from estream.package.parts import MatrixPart


@cache
def native_matrix(part: MatrixPart) -> "_native.Matrix":
    """The shape of a packed matrix, as kernels take it."""
    return _native.Matrix(part.outputs, part.inputs, part.bits, part.group)


@dataclass(frozen=True)
class BoundPage:
    """A page and the address that the engine lends."""

    spec: PageSpec
    address: int

    def floats(self, name: str) -> int:
        """The address of a float part, 0 where the page has none of that name."""
        return self.address + self.spec.layout.floats(name).offset if self.spec.layout.has(name) else 0


#: Rows that weights multiply: as floats, where they are exact, and quantised.
Inputs = tuple[np.ndarray, QuantizedArrays]


class CpuLinear:
    """Norms, quantisation and products of one model; with ``exact``, without quantising what the weights multiply."""

    def __init__(self, native: "_native.CpuDevice", config: ModelConfig, exact: bool) -> None:
        self.native = native
        self.config = config
        self.exact = exact

    def norm(self, page: BoundPage, name: str) -> "_native.Norm":
        """The model's norm with a page's weights ``name``."""
        return _native.Norm(page.floats(name), page.floats(f"{name}_bias"), self.config.hidden, self.config.norm_eps)

    def normalise(self, x: np.ndarray, norm: "_native.Norm", to: Inputs) -> None:
        """Normalise the rows of ``x`` as what the weights multiply: of ``to`` only that is written."""
        self.native.norm(x, norm, to[0][: len(x)] if self.exact else to[1].rows(0, len(x)))

    def inputs(self, page: BoundPage, residual: np.ndarray, a: Activations) -> None:
        """Normalise rows of the residual for the products of an attention block."""
        self.normalise(residual, self.norm(page, "input_norm"), (a.normed, a.normed_quantized))

    def quantize(self, x: np.ndarray, rows: int, columns: int, to: QuantizedArrays) -> None:
        if not self.exact:
            self.native.quantize(x[:rows], columns, to.rows(0, rows))

    def project(self, page: BoundPage, name: str, x: Inputs, out: np.ndarray, *, add: bool = False) -> None:
        """``out`` = x . matrix ``name`` + its bias; or that, times the model's residual factor, added to ``out``."""
        self.multiply(page, name, x[0][: len(out)] if self.exact else x[1].rows(0, len(out)), out, add=add)

    def multiply(
        self, page: BoundPage, name: str, rows: "np.ndarray | _native.Quantized", out: np.ndarray, *, add: bool = False
    ) -> None:
        """The same of given rows, of which there are as many as of ``out``."""
        part = page.spec.layout.matrix(name)
        bias, factor = page.floats(f"{name}_bias"), self.config.residual_factor
        self.native.matmul(native_matrix(part), page.address + part.offset, rows, out, add, bias, factor)
