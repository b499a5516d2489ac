// The Python module: argument checks and the release of the GIL, nothing else.
#include "binding.h"

NB_MODULE(_native, m) {
  m.doc() = "Kernels, arena and reader lanes of estream.";
  estream::binding::bind_reading(m);
  estream::binding::bind_packing(m);
  estream::binding::bind_device(m);
}
