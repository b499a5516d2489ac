"""Prompts of the tiny model that many tests share."""

PROMPTS = [list(range(1, n + 1)) for n in (1, 7, 33, 64, 90)]
