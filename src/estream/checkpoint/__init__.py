"""Readers of checkpoints, the input of a conversion."""
