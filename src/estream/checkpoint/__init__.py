"""Readers of the checkpoints that conversion starts from."""
