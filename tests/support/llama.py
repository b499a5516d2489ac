"""llama.cpp through ``llama-cpp-python``: what it computes from a GGUF file, and how it tokenizes."""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np


@llama_cpp.llama_log_callback
def _silent(level, text, data):
    pass


class Llama:
    """A loaded model; used as a context manager."""

    def __init__(self, path: Path, tokens: int = 256) -> None:
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        # Weights as they lie in the file, not rearranged for one kernel or the other.
        options.use_extra_bufts = False
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        assert self._model, f"llama.cpp does not load {path}"
        self._tokens = tokens

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *error: object) -> None:
        llama_cpp.llama_model_free(self._model)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """float32 [tokens, vocabulary]; keys and values in float32."""
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = self._tokens
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = llama_cpp.llama_init_from_model(self._model, options)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(context, batch) == 0
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        values = llama_cpp.llama_get_logits(context)
        result = np.ctypeslib.as_array(values, (len(ids), vocabulary)).copy()
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return result

    def encode(self, text: str) -> list[int]:
        """With the tokens that the file says are added, and special tokens found in the text."""
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        count = llama_cpp.llama_tokenize(vocabulary, data, len(data), buffer, len(buffer), True, True)
        assert count >= 0
        return list(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_int32 * count)).contents) if count else []
