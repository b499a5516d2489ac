"""Scores, labels, ranks and embeddings: texts become requests, and what sweeps leave of them becomes answers."""
