// The Python module: argument checks and the release of the GIL, nothing else.
#include "python/binding.h"

NB_MODULE(_native, m) {
  // Objects that a forked child abandons stay alive on purpose.
  nanobind::set_leak_warnings(false);
  m.def(
      "abandon", [](nanobind::handle instance) { instance.inc_ref(); }, nanobind::arg("instance"),
      R"(Keep an object alive for ever. A forked child does this with objects whose threads it does not have,
because destroying them would wait for those threads.)");
  m.doc() = R"(Kernels, arena and reader lanes of estream.

Arrays must be C-contiguous and of exactly the given type: nothing is converted or copied, and another type
raises TypeError. Shapes stand in brackets. An address is an integer, usually ``Arena.address`` plus an
offset; nothing checks that memory lies there, and it must outlive every object that got the address. Sizes
are in bytes, times in seconds. What does not fit together raises ValueError.)";
  estream::binding::bind_reading(m);
  estream::binding::bind_calibration(m);
  estream::binding::bind_packing(m);
  estream::binding::bind_platform(m);
  estream::binding::bind_device(m);
  estream::binding::bind_routing(m);
  estream::binding::bind_linear(m);
}
