"""Statistics of a matrix's inputs, from which calibration chooses codes and corrects weights."""

from dataclasses import dataclass

import numpy as np

#: This share of the mean moment is added to every input's moment, for inputs that the text did not show.
DAMPING = 0.01


@dataclass(frozen=True)
class InputStatistics:
    """Statistics of n inputs.

    ``moments`` float32 [n, n] are the damped second moments, sum of x x^T. ``order`` int32 [n] sorts inputs by their moment,
    largest first. ``feedback`` float32 [n, n], in that order: the share of each earlier input's error that moves a later one.
    """

    moments: np.ndarray
    feedback: np.ndarray
    order: np.ndarray


def input_statistics(x: np.ndarray, weights: np.ndarray, inputs: int) -> InputStatistics:
    """Return statistics of ``x`` float32 [tokens, columns], in which each row is multiplied by its weight, float32 [tokens].

    ``inputs`` is ``columns`` padded to whole groups. The method is LDLQ (QuIP, arXiv 2307.13304), which is GPTQ
    (arXiv 2210.17323) without the inverse. The error e of one output's weights costs e M e^T, with moments M = R R^T and R
    upper triangular. This is the sum over j of (e R)_j^2 = R_jj^2 (e_j + sum over i < j of e_i R_ij / R_jj)^2. So if codes are
    chosen in order, each can cancel the error that those before it left. ``feedback`` holds R_ij / R_jj.
    """
    # Double precision, so that the result hardly depends on how the linear algebra splits its sums.
    weighted = (x * weights[:, None]).astype(np.float64)
    columns = x.shape[1]
    moments = np.zeros((inputs, inputs))
    moments[:columns, :columns] = weighted.T @ weighted
    mean = float(np.trace(moments)) / columns
    # Scaled to a mean of 1, so that a long text does not overflow float32.
    moments *= 1.0 / mean if mean > 0.0 else 0.0
    moments[np.diag_indices(inputs)] += DAMPING if mean > 0.0 else 1.0
    order = np.argsort(-np.diagonal(moments).astype(np.float32), kind="stable").astype(np.int32)
    backwards = order[::-1]
    upper = np.linalg.cholesky(moments[np.ix_(backwards, backwards)])[::-1, ::-1]
    feedback = np.ascontiguousarray((upper / np.diagonal(upper)).T, np.float32)
    return InputStatistics(moments.astype(np.float32), feedback, order)


class Correction:
    """The correction C of weights W for inputs that carry errors, as in GPTAQ (arXiv 2504.02692).

    The least-squares solution of (W + W C) x = W x_reference is C = (sum of (x_reference - x) x^T) (damped sum of x x^T)^-1.
    """

    def __init__(self, columns: int) -> None:
        self._moments = np.zeros((columns, columns), np.float32)
        self._error_moments = np.zeros((columns, columns), np.float32)

    def add(self, x: np.ndarray, reference: np.ndarray) -> None:
        """Add inputs float32 [tokens, columns]: those of the quantised model and those of the reference."""
        self._moments += x.T @ x
        self._error_moments += (reference - x).T @ x

    def matrix(self) -> np.ndarray:
        """Return C, float32 [columns, columns]."""
        damping = DAMPING * np.trace(self._moments, dtype=np.float64) / len(self._moments)
        if damping == 0.0:
            return np.zeros_like(self._moments)
        damped = self._moments + np.eye(len(self._moments), dtype=np.float32) * np.float32(damping)
        return np.ascontiguousarray(np.linalg.solve(damped, self._error_moments.T).T)
