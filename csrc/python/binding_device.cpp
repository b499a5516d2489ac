// The CPU device and what its calls take.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/binding_rows.h"

namespace estream::binding {

namespace {

// A result may be a range of columns of a larger matrix.
using StridedFloats = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

template <typename X>
void matmul(CpuDevice& device, const Matrix& m, uintptr_t address, const X& x, size_t count, const StridedFloats& y,
            const ProductOptions& options) {
  require(y.shape(0) == count && static_cast<int>(y.shape(1)) >= m.outputs && y.stride(1) == 1,
          "the result does not fit the product");
  device.matmul(m.at(address), activations(m, x), static_cast<int>(count), y.data(), y.stride(0), options);
}

template <typename Device>
void bind_products(Device& device) {
  device
      .def(
          "matmul",
          [](CpuDevice& d, const Matrix& m, uintptr_t address, const Quantized& x, const StridedFloats& y, bool add,
             uintptr_t bias, float factor) { matmul(d, m, address, x, x.codes.shape(0), y, {add, factor, floats_at(bias)}); },
          "matrix"_a, "address"_a, "x"_a, "y"_a.noconvert(), "add"_a = false, "bias"_a = 0, "factor"_a = 1.0f, ReleaseGil(),
          R"(Compute y = x . matrix + bias, or y += factor * (x . matrix + bias) with ``add``.

address: of the packed matrix, a multiple of 64.
x: [rows, inputs]; quantised in groups as long as the matrix's.
y: [rows, at least outputs]; it may be a range of columns of a larger array.
bias: the address of float32 [outputs rounded up to 32], or 0.)")
      .def(
          "matmul",
          [](CpuDevice& d, const Matrix& m, uintptr_t address, const Floats& x, const StridedFloats& y, bool add,
             uintptr_t bias, float factor) { matmul(d, m, address, x, x.shape(0), y, {add, factor, floats_at(bias)}); },
          "matrix"_a, "address"_a, "x"_a.noconvert(), "y"_a.noconvert(), "add"_a = false, "bias"_a = 0, "factor"_a = 1.0f,
          ReleaseGil(), "The same for float32 activations.");
}

template <typename Device>
void bind_rows(Device& device) {
  device
      .def(
          "quantize",
          [](CpuDevice& d, const Floats& x, int columns, const Quantized& to) {
            d.quantize(rows(x), columns, to.output(rows(x), columns, "quantize: shapes differ"));
          },
          "x"_a.noconvert(), "columns"_a, "to"_a, ReleaseGil(),
          "Quantise the first ``columns`` of each row of ``x`` into ``to``. Codes after them become zero.")
      .def(
          "rotate",
          [](CpuDevice& d, const Floats& x, int heads, const Floats& cosine, const Floats& sine, const Norm* norm,
             float bound) {
            const int width = static_cast<int>(x.shape(1)), dims = 2 * static_cast<int>(cosine.shape(1));
            require(heads > 0 && width % heads == 0 && dims <= width / heads, "rotate: heads do not fit");
            require(!norm || (width % norm->columns == 0 && !norm->bias), "rotate: the norm does not fit the heads");
            require(cosine.shape(0) == x.shape(0) && sine.shape(0) == x.shape(0) && sine.shape(1) == cosine.shape(1),
                    "rotate: angles do not fit");
            d.rotate(rows(x), {heads, width / heads, bound, norm}, {cosine.data(), sine.data(), dims});
          },
          "x"_a.noconvert(), "heads"_a, "cosine"_a.noconvert(), "sine"_a.noconvert(), "norm"_a.none() = nb::none(),
          "bound"_a = 0.0f, ReleaseGil(),
          R"(Apply the rotary embedding in place to ``x`` [rows, heads * head_dim].

First ``norm``, an RMSNorm whose columns divide the row, normalises one part of the row after another, and
values are clamped to [-bound, bound] where ``bound`` is not 0. ``cosine`` and ``sine`` [rows, dims / 2] are
of the angles by which values i and i + dims / 2 of each head rotate.)")
      .def(
          "scatter_add",
          [](CpuDevice& d, const Floats& x, const Array<int32_t, 1>& to, const Array<float, 1>& weights, const Floats& y) {
            require(x.shape(1) == y.shape(1) && weights.shape(0) == x.shape(0), "scatter: shapes differ");
            check_rows(to, x.shape(0), static_cast<int64_t>(y.shape(0)), "a row of the result is out of range");
            d.scatter_add(rows(x), {to.data(), weights.data()}, rows(y));
          },
          "x"_a.noconvert(), "to"_a.noconvert(), "weights"_a.noconvert(), "y"_a.noconvert(), ReleaseGil(),
          R"(Add rows: y[to[i]] += weights[i] * x[i]. ``x`` and ``y`` have equally many columns, and ``to`` must not name a
row twice.)");
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<Quantized>(m, "Quantized", "Memory for quantised activations: in each row every group of columns shares a scale.")
      .def(nb::init<Array<int8_t, 2>, Floats, Array<int32_t, 2>>(), "codes"_a.noconvert(), "scales"_a.noconvert(),
           "sums"_a.noconvert(),
           R"(codes: [rows, columns], in -127..127.
scales: [rows, groups]; an activation is its code times the scale of its group.
sums: [rows, groups], the sum of each group's codes.)");
  auto device =
      nb::class_<CpuDevice>(m, "CpuDevice",
                            R"(The operations of a layer, on ``threads`` threads. One call at a time; calls release the GIL.

Activations are float32 [rows, columns], or ``Quantized``. Results do not depend on the number of threads,
nor do those of a row on the rows beside it.)")
          .def(
              "__init__",
              [](CpuDevice* self, int threads, bool exact_attention) {
                require(threads >= 1 && threads <= 1024, "threads must lie in 1..1024");
                new (self) CpuDevice(threads, exact_attention);
              },
              "threads"_a, "exact_attention"_a = false,
              R"(``exact_attention``: compute attention in float32 even where a faster kernel exists. ESTREAM_KERNELS may name
the kernel variant; an unknown one raises RuntimeError.)")
          .def_prop_ro("kv_element_bytes", &CpuDevice::kv_element_bytes, "The size of an element of keys and values: 4 or 2.")
          .def_prop_ro("variant", &CpuDevice::variant, "The name of the kernel variant in use.")
          .def_prop_ro("threads", &CpuDevice::threads, "The number of threads, the caller's included.");
  bind_products(device);
  bind_experts(m, device);
  bind_norms(m, device);
  bind_rows(device);
  bind_attention(m, device);
  bind_head(device);
  bind_measuring(device);
  m.def(
      "variants",
      [] {
        std::vector<std::string> names;
        for (const char* const* n = available_kernels(); *n; n++) names.emplace_back(*n);
        return names;
      },
      "The names of the kernel variants that can run here, fastest first.");
}

}  // namespace estream::binding
