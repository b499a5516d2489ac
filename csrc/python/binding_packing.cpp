// Packing and unpacking weights, for conversion and checks.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/pack.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

WeightType weight_type(const std::string& name) {
  if (name == "float32") return WeightType::float32;
  if (name == "float16") return WeightType::float16;
  require(name == "bfloat16", "weights must be float32, float16 or bfloat16");
  return WeightType::bfloat16;
}

using Order = Array<const int32_t, 1>;
using Sources = std::vector<ConstBytes>;

void check_order(const Matrix& m, const Order& order, int64_t row_count) {
  require(order.shape(0) == static_cast<size_t>(m.outputs), "order must name a row for each output");
  for (size_t i = 0; i < order.shape(0); i++) require(order.data()[i] < row_count, "order names a row that is not there");
}

// The rows of one or more arrays, one after another.
WeightRows weight_rows(const Sources& sources, const std::string& dtype, int columns) {
  WeightRows found{weight_type(dtype), columns, {}};
  const size_t item = found.type == WeightType::float32 ? 4 : 2, row = item * static_cast<size_t>(columns);
  for (const ConstBytes& source : sources) {
    require(reinterpret_cast<uintptr_t>(source.data()) % item == 0, "weights are not aligned");
    for (size_t at = 0; at + row <= source.size(); at += row) found.rows.push_back(source.data() + at);
  }
  return found;
}

WeightRows weight_rows(const Matrix& m, const Sources& sources, const std::string& dtype, int columns, const Order& order) {
  require(columns >= 1 && columns <= m.inputs, "columns do not fit the matrix");
  WeightRows found = weight_rows(sources, dtype, columns);
  check_order(m, order, static_cast<int64_t>(found.rows.size()));
  return found;
}

// Packs weights on its own threads; for conversion.
class Packer {
 public:
  explicit Packer(int threads) : pool_(threads) {}

  std::tuple<int64_t, double, double> pack(const Matrix& m, const Sources& sources, const std::string& dtype, int columns,
                                           const Order& order, const Bytes& to) {
    const WeightRows rows = weight_rows(m, sources, dtype, columns, order);
    const PackedMatrix packed = m.at(0);
    require(to.size() == packed.bytes(), "the packed matrix does not fit");
    const PackingResult result = pack_matrix(pool_, select_kernels(), rows, order.data(), packed, to.data());
    return {result.bad_row, result.error.squared_error, result.error.squared};
  }

  int64_t pack_codes(const Matrix& m, const Array<const int8_t, 2>& codes, const Array<const uint16_t, 2>& scales,
                     const Order& order, const Bytes& to) {
    const size_t columns = codes.shape(1), group = static_cast<size_t>(m.group);
    require(columns >= 1 && columns <= static_cast<size_t>(m.inputs), "columns do not fit the matrix");
    require(columns % group == 0, "columns must be whole groups");
    require(scales.shape(0) == codes.shape(0) && scales.shape(1) == columns / group, "every group needs one scale");
    check_order(m, order, static_cast<int64_t>(codes.shape(0)));
    const PackedMatrix packed = m.at(0);
    require(to.size() == packed.bytes(), "the packed matrix does not fit");
    const CodeRows rows{codes.data(), scales.data(), static_cast<int>(columns)};
    return estream::pack_codes(pool_, rows, order.data(), packed, to.data());
  }

  std::pair<double, double> error(const Matrix& m, const Sources& sources, const std::string& dtype, int columns,
                                  const Order& order, const ConstBytes& packed) {
    const WeightRows rows = weight_rows(m, sources, dtype, columns, order);
    PackedMatrix at = m.at(0);
    require(packed.size() == at.bytes(), "the packed matrix does not fit");
    at.data = packed.data();
    const PackingError sums = packing_error(pool_, rows, order.data(), at);
    return {sums.squared_error, sums.squared};
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

void column_squares(const ConstBytes& source, const std::string& dtype, const Array<double, 1>& sums) {
  require(sums.shape(0) > 0, "sums must have a place for each column");
  add_column_squares(weight_rows({source}, dtype, static_cast<int>(sums.shape(0))), sums.data());
}

}  // namespace

void bind_packing(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix",
                     "The shape of a matrix in a package (docs/package-format.md). Its bytes are named at each call.")
      .def(nb::init<int, int, int, int>(), "outputs"_a, "inputs"_a, "bits"_a, "group"_a,
           "``bits`` is 4 or 8; ``group`` is 32, 64 or 128 and divides the inputs.")
      .def_ro("outputs", &Matrix::outputs)
      .def_ro("inputs", &Matrix::inputs)
      .def_ro("bits", &Matrix::bits)
      .def_ro("group", &Matrix::group)
      .def_prop_ro("bytes", [](const Matrix& x) { return x.at(0).bytes(); }, "The size of the packed matrix.");
  nb::class_<Packer>(m, "Packer",
                     R"(Packs matrices on its own threads, for conversion.

``sources`` are byte arrays that hold the source's rows of ``columns`` weights, one array after another, as
"float32", "float16" or "bfloat16". Columns from ``columns`` to the matrix's inputs are zero. ``order``
[outputs] names the source row of each output; a negative number stands for zeros.)")
      .def(nb::init<int>(), "threads"_a)
      .def("pack", &Packer::pack, "matrix"_a, "sources"_a.noconvert(), "dtype"_a, "columns"_a, "order"_a.noconvert(),
           "to"_a.noconvert(), ReleaseGil(),
           R"(Quantise and pack weights into ``to`` [matrix.bytes].

Returns (bad row, squared error, squared weights). The bad row is the first source row with a weight that is
not finite or too large for a scale in fp16, or -1. The other two are sums over all weights.)")
      .def("pack_codes", &Packer::pack_codes, "matrix"_a, "codes"_a.noconvert(), "scales"_a.noconvert(), "order"_a.noconvert(),
           "to"_a.noconvert(), ReleaseGil(),
           R"(Pack codes [rows, columns] that the source already has, with the bits of fp16 scales
[rows, columns / group], into ``to`` [matrix.bytes].

Returns -1, or the first source row with a code that the bits cannot hold or a scale that is not finite.)")
      .def("error", &Packer::error, "matrix"_a, "sources"_a.noconvert(), "dtype"_a, "columns"_a, "order"_a.noconvert(),
           "packed"_a.noconvert(), ReleaseGil(),
           R"(Compare a packed matrix [matrix.bytes] with its source.

Returns (squared error, squared weights), as sums over all weights.)");
  m.def("column_squares", &column_squares, "source"_a.noconvert(), "dtype"_a, "sums"_a.noconvert(), ReleaseGil(),
        "Add the squares of each column of the source's weights to ``sums`` [columns]. ``dtype`` is that of Packer.");
  m.def("unpack", &unpack, "matrix"_a, "packed"_a.noconvert(), "out"_a.noconvert(), ReleaseGil(),
        "Write the weights of a packed matrix [matrix.bytes] to ``out`` [outputs, inputs].");
}

}  // namespace estream::binding
