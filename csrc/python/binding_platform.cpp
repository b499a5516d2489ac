// What the operating system says of this process and its machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "platform/platform.h"
#include "python/binding.h"

namespace estream::binding {

void bind_platform(nb::module_& m) {
  m.def("process_memory", [] {
    const platform::ProcessMemory memory = platform::process_memory();
    return std::make_tuple(memory.resident, memory.peak);
  });
  m.def("available_memory", &platform::available_memory);
  m.def("usable_processors", &platform::usable_processors);
  m.def("process_lives", &platform::process_lives, "process"_a);
  m.def("error_text", &platform::error_text, "code"_a);
}

}  // namespace estream::binding
