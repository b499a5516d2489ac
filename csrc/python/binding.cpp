// The Python module: argument checks and the release of the GIL, nothing else.
#include "python/binding.h"

NB_MODULE(_native, m) {
  // Objects that a forked child abandons stay alive on purpose.
  nanobind::set_leak_warnings(false);
  m.def("abandon", [](nanobind::handle instance) { instance.inc_ref(); }, nanobind::arg("instance"));
  m.doc() = "Kernels, arena and reader lanes of estream.";
  estream::binding::bind_reading(m);
  estream::binding::bind_calibration(m);
  estream::binding::bind_packing(m);
  estream::binding::bind_platform(m);
  estream::binding::bind_device(m);
  estream::binding::bind_routing(m);
  estream::binding::bind_linear(m);
}
