"""The engine: one sweep over the tape for a batch of prompts, through a fixed arena."""
