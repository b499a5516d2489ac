"""Compiles one graph, in a process of its own: ``python compile_process.py MODEL CONTEXT SOC_MODEL``.

Reads an ONNX model from MODEL, and writes to CONTEXT an ONNX model that holds the compiled binary. The compiler logs to stderr,
its account of the memory traffic included. Imports nothing of the package, so it starts fast.
"""

import sys

import onnxruntime as ort
import onnxruntime_qnn

_VERBOSE = 0


def main(model: str, context: str, soc_model: str) -> None:
    ort.set_default_logger_severity(_VERBOSE)
    ort.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
    options = ort.SessionOptions()
    for key, value in (
        ("session.disable_cpu_ep_fallback", "1"),
        ("ep.context_enable", "1"),
        ("ep.context_file_path", context),
        ("ep.context_embed_mode", "1"),
    ):
        options.add_session_config_entry(key, value)
    backend = onnxruntime_qnn.get_qnn_htp_path()
    settings = {"backend_path": backend, "soc_model": soc_model, "enable_htp_fp16_precision": "1"}
    options.add_provider_for_devices(devices, settings)
    ort.InferenceSession(model, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
