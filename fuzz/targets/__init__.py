"""The targets, one in each file."""

from importlib import import_module

from fuzz.harness import FUZZ, Target

NAMES = (
    *("gguf_file", "safetensors_header", "safetensors_index", "config", "manifest", "tokenizer", "chat_template"),
    *("messages", "profile", "native_calls"),
)


def load_target(name: str) -> Target:
    target: Target = import_module(f"fuzz.targets.{name}").TARGET
    return target


def open_inputs() -> frozenset[str]:
    """Inputs of the corpus whose findings are not mended yet, as TARGET/FILE."""
    path = FUZZ / "open.txt"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return frozenset(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))
