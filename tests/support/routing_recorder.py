"""Recording or forcing which experts a model's tokens go to."""

import numpy as np
from loaded import device_of

from estream.api.model import Model
from estream.engine.routing import RoutingLists


class RoutingRecorder:
    """Sees, and may replace, what the device routes."""

    def __init__(self, model: Model, forced: list[tuple[np.ndarray, np.ndarray]] | None = None) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        device = device_of(model)
        original = device.route

        def route(spec, address):
            routing = original(spec, address)
            if not spec.layout.has("router"):
                return routing
            a, rows = device._a, len(device._residual)
            self.seen.append((a.expert_ids[:rows].copy(), a.expert_weights[:rows].copy()))
            if forced is None:
                return routing
            a.expert_ids[:rows], a.expert_weights[:rows] = forced[len(self.seen) - 1]
            return RoutingLists.of(a.expert_ids[:rows], a.expert_weights[:rows], device._config.moe.experts)

        device.route = route  # type: ignore[method-assign]
