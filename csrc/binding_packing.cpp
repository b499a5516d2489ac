// Packing and unpacking weights, for conversion and checks.
#include <nanobind/stl/string.h>

#include "binding.h"
#include "pack.h"

namespace estream::binding {

namespace {

WeightType weight_type(const std::string& name) {
  if (name == "float32") return WeightType::float32;
  if (name == "float16") return WeightType::float16;
  require(name == "bfloat16", "weights must be float32, float16 or bfloat16");
  return WeightType::bfloat16;
}

// Packs weights on its own threads; for conversion.
class Packer {
 public:
  explicit Packer(int threads) : pool_(threads) {}

  int64_t pack(const Matrix& m, const ConstBytes& source, const std::string& dtype, int columns,
               const Array<const int32_t, 1>& order, const Bytes& to) {
    const WeightType type = weight_type(dtype);
    const size_t item = type == WeightType::float32 ? 4 : 2;
    require(columns >= 1 && columns <= m.inputs, "columns do not fit the matrix");
    const auto row_count = static_cast<int64_t>(source.size() / (item * columns));
    require(reinterpret_cast<uintptr_t>(source.data()) % item == 0, "weights are not aligned");
    require(order.shape(0) == static_cast<size_t>(m.outputs), "order must name a row for each output");
    for (size_t i = 0; i < order.shape(0); i++) require(order.data()[i] < row_count, "order names a row that is not there");
    const PackedMatrix packed = m.at(0);
    require(to.size() == packed.bytes(), "the packed matrix does not fit");
    return pack_matrix(pool_, select_kernels(), {source.data(), type, columns, columns}, order.data(), packed, to.data());
  }

 private:
  ThreadPool pool_;
};

void unpack(const Matrix& m, const ConstBytes& packed, const Floats& out) {
  require(packed.size() == m.at(0).bytes(), "the packed matrix does not fit");
  require(static_cast<int>(out.shape(0)) == m.outputs && static_cast<int>(out.shape(1)) == m.inputs, "out does not fit");
  PackedMatrix at = m.at(0);
  at.data = packed.data();
  unpack_matrix(at, out.data());
}

}  // namespace

void bind_packing(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def(nb::init<int, int, int, int>(), "outputs"_a, "inputs"_a, "bits"_a, "group"_a)
      .def_ro("outputs", &Matrix::outputs)
      .def_ro("inputs", &Matrix::inputs)
      .def_ro("bits", &Matrix::bits)
      .def_ro("group", &Matrix::group)
      .def_prop_ro("bytes", [](const Matrix& x) { return x.at(0).bytes(); });
  nb::class_<Packer>(m, "Packer")
      .def(nb::init<int>(), "threads"_a)
      .def("pack", &Packer::pack, "matrix"_a, "source"_a.noconvert(), "dtype"_a, "columns"_a, "order"_a.noconvert(),
           "to"_a.noconvert(), ReleaseGil());
  m.def("unpack", &unpack, "matrix"_a, "packed"_a.noconvert(), "out"_a.noconvert(), ReleaseGil());
}

}  // namespace estream::binding
