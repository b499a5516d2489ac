// What the operating system says of this process and its machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "platform/platform.h"
#include "python/binding.h"

namespace estream::binding {

void bind_platform(nb::module_& m) {
  m.def(
      "process_memory",
      [] {
        const platform::ProcessMemory memory = platform::process_memory();
        return std::make_tuple(memory.resident, memory.peak);
      },
      R"(The memory of this process: (resident bytes, peak of them). Raises RuntimeError where the system does not
say.)");
  m.def("available_memory", &platform::available_memory,
        "Bytes that the machine can give without swapping. Raises RuntimeError where the system does not say.");
  m.def(
      "memory_backed", [](nb::handle path) { return platform::memory_backed(system_path(path)); }, "path"_a,
      "Whether a file or folder lies in memory, as in tmpfs. Direct reads of such a file read no disk.");
  m.def("usable_processors", &platform::usable_processors, "The number of processors that this process may run on.");
  m.def("process_lives", &platform::process_lives, "process"_a, "Whether a process with this number exists, under any user.");
  m.def("error_text", &platform::error_text, "code"_a, "The system's message for the error number of ``Reader.wait``.");
}

}  // namespace estream::binding
