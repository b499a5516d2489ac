"""lm-evaluation-harness: the model ``estream``; importing this registers it (extra ``eval``)."""

from estream.integrations.lm_eval.model import EstreamLM

__all__ = ["EstreamLM"]
