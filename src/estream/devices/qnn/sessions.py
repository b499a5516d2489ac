"""Graphs that are ready to run on the NPU or its emulator. They read and write arrays at addresses, without a copy."""

import functools
from typing import Any

import numpy as np

from estream.devices.qnn.toolchain import soc_model, toolchain
from estream.errors import DeviceError
from estream.package.npu.graph_specs import GraphSpec, TensorSpec

_PROVIDER = "QNNExecutionProvider"
_ERRORS_ONLY = 3


@functools.cache
def _devices() -> tuple[Any, ...]:
    """The provider's devices. A process registers the provider once."""
    toolchain()
    import onnxruntime as ort
    import onnxruntime_qnn

    ort.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    return tuple(device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER)


def has_npu() -> bool:
    """Whether the runtime sees a real NPU. Raises OptionError where it is not installed."""
    devices = _devices()
    import onnxruntime as ort

    return any(device.device.type == ort.OrtHardwareDeviceType.NPU for device in devices)


class Session:
    """One graph. An address stays bound: whoever overwrites the bytes there has changed the input.

    The backend copies inputs and outputs, ``io_bytes`` in all, to and from memory of its own.
    """

    def __init__(self, spec: GraphSpec, model: bytes, soc: str) -> None:
        """Load a compiled graph, or compile one in this process.

        Args:
            spec: the graph.
            model: an ONNX model: a compiled graph, or what ``graphs.build`` gives.
            soc: a key of ``toolchain.SOCS``. A compiled graph must be compiled for it.

        Raises:
            OptionError: the SoC is not known, or the toolchain not installed.
            DeviceError: the graph cannot be loaded, or a node of it would leave the NPU.

        """
        import onnxruntime as ort
        import onnxruntime_qnn

        self.spec = spec
        devices = _devices()
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings = {
            "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
            "soc_model": str(soc_model(soc)),
            "enable_htp_fp16_precision": "1",
        }
        options.add_provider_for_devices(list(devices), settings)
        try:
            self._session = ort.InferenceSession(model, options)
        except Exception as error:  # the runtime's own types are private
            raise DeviceError(f"graph '{spec.name}' cannot be loaded for {soc}: {error}") from error
        self._session.disable_fallback()
        self._check_assignment()
        self._binding = self._session.io_binding()

    @property
    def io_bytes(self) -> int:
        """All inputs and outputs together."""
        return sum(tensor.bytes for tensor in (*self.spec.inputs, *self.spec.outputs))

    def assignment(self) -> dict[str, list[str]]:
        """The operators that each provider runs, by the runtime's own report."""
        return {
            part.ep_name: [node.op_type for node in part.get_nodes()]
            for part in self._session.get_provider_graph_assignment_info()
        }

    def bind_input(self, name: str, address: int) -> None:
        """From now on the input lies at ``address``, in C order."""
        tensor = self.spec.input(name)
        self._binding.bind_input(name, "cpu", 0, _dtype(tensor), list(tensor.shape), address)

    def bind_output(self, name: str, address: int) -> None:
        """From now on the output goes to ``address``. It must not overlap an input of the same call."""
        tensor = self.spec.output(name)
        self._binding.bind_output(name, "cpu", 0, _dtype(tensor), list(tensor.shape), address)

    def run(self) -> None:
        """Compute, without the GIL.

        Raises:
            DeviceError: the NPU failed.

        """
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # the runtime's own types are private
            raise DeviceError(f"graph '{self.spec.name}' failed on the NPU: {error}") from error

    def _check_assignment(self) -> None:
        elsewhere = {name: nodes for name, nodes in self.assignment().items() if name != _PROVIDER}
        if elsewhere or not self.assignment():
            raise DeviceError(f"graph '{self.spec.name}' would not run on the NPU alone: {elsewhere or 'no report'}")


def _dtype(tensor: TensorSpec) -> type[np.generic]:
    return np.dtype(tensor.dtype).type
