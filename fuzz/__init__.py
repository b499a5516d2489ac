"""Fuzzers of what estream takes from strangers: packages, checkpoints, tokenizers, templates, messages (CONTRIBUTING.md)."""
