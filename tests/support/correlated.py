"""Inputs of a matrix as models have them."""

import numpy as np


def correlated_inputs(tokens: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with correlated columns of very different size, and positive weights."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((tokens, columns)) @ (0.3 * random.standard_normal((columns, columns)) + np.eye(columns))
    x = mixed * np.exp(random.standard_normal(columns))
    return x.astype(np.float32), random.random(tokens).astype(np.float32)
