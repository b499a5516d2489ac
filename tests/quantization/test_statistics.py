"""Statistics of what a matrix is given."""

import numpy as np
from correlated import correlated_inputs

from estream.quantization.statistics import DAMPING, Correction, input_statistics


def test_statistics_are_the_damped_moments_and_their_factor():
    x, weights = correlated_inputs(500, 60)
    statistics = input_statistics(x, weights, 64)
    moments = np.zeros((64, 64))
    moments[:60, :60] = np.einsum("ti,tj,t->ij", x, x, weights.astype(np.float64) ** 2)
    moments = moments / (np.trace(moments) / 60) + DAMPING * np.eye(64)
    np.testing.assert_allclose(statistics.moments, moments, rtol=1e-4, atol=1e-5)
    assert sorted(statistics.order) == list(range(64))
    ordered = moments[np.ix_(statistics.order, statistics.order)]
    assert (np.diff(np.diagonal(ordered)) <= 1e-6).all()
    # An error e costs the sum of pivots times the squares of e + F e, for the unit triangular F of feedback.
    unit = statistics.feedback.astype(np.float64)
    assert (np.diagonal(unit) == 1).all()
    assert (np.triu(unit, 1) == 0).all()
    pivots = np.linalg.solve(unit.T, np.linalg.solve(unit.T, ordered.T).T)
    np.testing.assert_allclose(pivots, np.diag(np.diagonal(pivots)), atol=2e-4)


def test_a_correction_makes_up_for_what_is_linear():
    x, _ = correlated_inputs(4000, 32)
    change = np.eye(32, dtype=np.float32) + 0.1 * np.random.default_rng(3).standard_normal((32, 32)).astype(np.float32)
    correction = Correction(32)
    for part in range(0, 4000, 1500):
        correction.add(x[part : part + 1500], (x @ change)[part : part + 1500])
    before = np.square(x @ change - x).sum()
    after = np.square(x @ change - x - x @ correction.matrix().T).sum()
    assert after < 0.05 * before
    assert not Correction(8).matrix().any()
