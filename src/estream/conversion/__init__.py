"""Writes packages: from checkpoints, or with random weights."""
