// What the files of the Python module share: array types, checks, and the shape of a matrix.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "kernels/kernels.h"

namespace estream {
class CpuDevice;
}

namespace estream::binding {

namespace nb = nanobind;
using namespace nb::literals;

template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Floats = Array<float, 2>;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

inline void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// The bytes of a path as the system knows it: text, bytes or a path object.
inline std::string system_path(nb::handle path) {
  PyObject* encoded = nullptr;
  if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw nb::python_error();
  const nb::object bytes = nb::steal(encoded);
  return {PyBytes_AS_STRING(encoded), static_cast<size_t>(PyBytes_GET_SIZE(encoded))};
}

using Bytes = Array<uint8_t, 1>;
using ConstBytes = Array<const uint8_t, 1>;

// A matrix's shape in a package; its bytes are bound at call time.
struct Matrix {
  int outputs, inputs, bits, group;

  Matrix(int outputs, int inputs, int bits, int group) : outputs(outputs), inputs(inputs), bits(bits), group(group) {
    require(outputs > 0 && inputs > 0, "a matrix needs outputs and inputs");
    require(bits == 4 || bits == 8, "bits must be 4 or 8");
    require(group == 32 || group == 64 || group == 128, "group must be 32, 64 or 128");
    require(inputs % group == 0, "inputs must be a multiple of group");
  }
  PackedMatrix at(uintptr_t address) const {
    require(address % 64 == 0, "a matrix must lie on a multiple of 64 bytes");
    return {reinterpret_cast<const uint8_t*>(address), outputs, inputs, bits, group};
  }
};

void bind_calibration(nb::module_& m);
void bind_reading(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_platform(nb::module_& m);
void bind_device(nb::module_& m);
void bind_routing(nb::module_& m);
void bind_linear(nb::module_& m);
// Parts of the device.
void bind_experts(nb::module_& m, nb::class_<CpuDevice>& device);
void bind_norms(nb::module_& m, nb::class_<CpuDevice>& device);
void bind_attention(nb::module_& m, nb::class_<CpuDevice>& device);
void bind_head(nb::class_<CpuDevice>& device);
void bind_measuring(nb::class_<CpuDevice>& device);

}  // namespace estream::binding
