// What the CPU device can say about its own speed.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/cpu_device.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

// Time spent in each kind of work since the device was made.
std::map<std::string, double> seconds(const CpuDevice& device) {
  constexpr std::array kNames = {"products", "attention",  "keys and values", "linear attention", "norms",
                                 "rope",     "quantizing", "router",          "scatter",          "reductions"};
  static_assert(kNames.size() == static_cast<size_t>(Work::count));
  std::map<std::string, double> all;
  for (size_t i = 0; i < kNames.size(); i++) all[kNames[i]] = device.seconds(static_cast<Work>(i));
  return all;
}

// Operations that a bare loop of the kind's multiplications did on all threads; 0 where the variant has none.
int64_t peak(CpuDevice& device, const std::string& kind, int64_t rounds) {
  const PeakLoops& loops = device.peak_loops();
  const std::pair<const char*, int64_t (*)(int64_t)> kinds[] = {{"int8", loops.int8},
                                                                {"float32", loops.float32},
                                                                {"bfloat16", loops.bf16},
                                                                {"int8 tiles", loops.amx_int8},
                                                                {"bfloat16 tiles", loops.amx_bf16}};
  require(rounds >= 1, "peak: rounds must be at least 1");
  for (const auto& [name, loop] : kinds)
    if (kind == name) return loop ? device.peak(loop, rounds) : 0;
  throw std::invalid_argument("peak: no kind '" + kind + "'");
}

}  // namespace

void bind_measuring(nb::class_<CpuDevice>& device) {
  device.def("seconds", &seconds, "The seconds since construction that each kind of work has taken.")
      .def("peak", &peak, "kind"_a, "rounds"_a, ReleaseGil(),
           R"(Run a loop of multiply-add instructions on all threads, to measure the peak throughput.

``kind`` is "int8", "float32", "bfloat16", "int8 tiles" or "bfloat16 tiles"; the latter two are AMX. Returns
the operations that were done, a multiply-add counting as two; 0 where the variant has no such instruction.)");
}

}  // namespace estream::binding
