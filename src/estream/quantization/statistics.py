"""What the choice of codes needs to know of a matrix's inputs."""

from dataclasses import dataclass

import numpy as np

#: Added to every input's moment, as a part of their mean: what the text did not show may still come.
DAMPING = 0.01


@dataclass(frozen=True)
class InputStatistics:
    """Of n inputs: ``moments`` float32 [n, n], the damped sum of products of two inputs; ``order`` int32 [n], strongest
    input first; ``feedback`` float32 [n, n], in that order: by how much of each earlier input's error a later one is moved.
    """

    moments: np.ndarray
    feedback: np.ndarray
    order: np.ndarray


def input_statistics(x: np.ndarray, weights: np.ndarray, inputs: int) -> InputStatistics:
    """Statistics of rows ``x`` float32 [tokens, columns], each counting by the square of its weight, float32 [tokens].

    ``inputs`` is columns padded to whole groups. The errors e of one output's weights cost e M e^T for the moments M = R R^T
    with R upper triangular, that is the sum over j of (e R)_j^2 = R_jj^2 (e_j + sum over i < j of e_i R_ij / R_jj)^2, so
    choosing codes one after another, each can cancel what those before it left: LDLQ (QuIP, arXiv 2307.13304), which is
    GPTQ (arXiv 2210.17323) without the inverse. ``feedback`` holds R_ij / R_jj.
    """
    # In double precision: results must not depend on how the linear algebra splits its sums.
    weighted = (x * weights[:, None]).astype(np.float64)
    columns = x.shape[1]
    moments = np.zeros((inputs, inputs))
    moments[:columns, :columns] = weighted.T @ weighted
    mean = float(np.trace(moments)) / columns
    # Scaled to a mean of one, so that no text is too long for float32.
    moments *= 1.0 / mean if mean > 0.0 else 0.0
    moments[np.diag_indices(inputs)] += DAMPING if mean > 0.0 else 1.0
    order = np.argsort(-np.diagonal(moments).astype(np.float32), kind="stable").astype(np.int32)
    backwards = order[::-1]
    upper = np.linalg.cholesky(moments[np.ix_(backwards, backwards)])[::-1, ::-1]
    feedback = np.ascontiguousarray((upper / np.diagonal(upper)).T, np.float32)
    return InputStatistics(moments.astype(np.float32), feedback, order)


class Correction:
    """How weights must move to make up for what already happened to their inputs: the least-squares answer to
    (W + W C) x = W x_exact is C = sum of (x_exact - x) x^T times the inverse of the damped sum of x x^T. As in GPTAQ
    (arXiv 2504.02692). Rows are added in any number of parts.
    """

    def __init__(self, columns: int) -> None:
        self._moments = np.zeros((columns, columns), np.float32)
        self._missing = np.zeros((columns, columns), np.float32)

    def add(self, x: np.ndarray, exact: np.ndarray) -> None:
        """Rows float32 [tokens, columns]: as they are, and as they were."""
        self._moments += x.T @ x
        self._missing += (exact - x).T @ x

    def matrix(self) -> np.ndarray:
        """C, float32 [columns, columns]."""
        damping = DAMPING * np.trace(self._moments, dtype=np.float64) / len(self._moments)
        if damping == 0.0:
            return np.zeros_like(self._moments)
        damped = self._moments + np.eye(len(self._moments), dtype=np.float32) * np.float32(damping)
        return np.ascontiguousarray(np.linalg.solve(damped, self._missing.T).T)
