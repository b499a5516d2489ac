// The CPU device and what its calls take.
#include <nanobind/stl/optional.h>
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

struct Attention {
  AttentionShape shape;

  Attention(int heads, int kv_heads, int head_dim, int value_dim, float scale, int window)
      : shape{heads, kv_heads, head_dim, value_dim, scale, window} {
    require(window >= 0, "window must not be negative");
    require(kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
    require(head_dim > 0 && head_dim % 2 == 0 && head_dim <= 256, "head_dim must be even and lie in 2..256");
    require(value_dim > 0 && value_dim <= 256, "value_dim must lie in 1..256");
  }
  int64_t value_stride() const { return (shape.value_dim + 15) / 16 * 16; }
  KeyValues key_values(const Bytes& keys, const Bytes& values, int64_t capacity, int element_bytes) const {
    require(capacity % kKeyRun == 0, "capacity must be a multiple of 32");
    const int64_t rows = shape.kv_heads * capacity * element_bytes;
    require(static_cast<int64_t>(keys.size()) >= rows * shape.head_dim &&
                static_cast<int64_t>(values.size()) >= rows * value_stride(),
            "keys and values do not fit the capacity");
    return {keys.data(), values.data(), capacity};
  }
};

void bind_shapes(nb::module_& m) {
  nb::class_<Norm>(m, "Norm").def(
      "__init__",
      [](Norm* self, uintptr_t weight, uintptr_t bias, int columns, float eps) {
        require(columns > 0, "norm: columns must be positive");
        new (self) Norm{floats_at(weight), floats_at(bias), columns, eps};
      },
      "weight"_a, "bias"_a, "columns"_a, "eps"_a);
  nb::class_<Router>(m, "Router")
      .def(
          "__init__",
          [](Router* self, const Routing& choice, uintptr_t weight, int columns, uintptr_t bias, uintptr_t correction) {
            require(columns > 0 && columns % 16 == 0, "router: columns must be a multiple of 16");
            new (self) Router{choice, {floats_at(bias), floats_at(correction)}, floats_at(weight), columns};
          },
          "choice"_a, "weight"_a, "columns"_a, "bias"_a = 0, "correction"_a = 0, nb::keep_alive<1, 2>());
  nb::class_<Quantized>(m, "Quantized")
      .def(nb::init<Array<int8_t, 2>, Floats, Array<int32_t, 2>>(), "codes"_a.noconvert(), "scales"_a.noconvert(),
           "sums"_a.noconvert());
  nb::class_<Attention>(m, "Attention")
      .def(nb::init<int, int, int, int, float, int>(), "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "scale"_a,
           "window"_a = 0);
}

template <typename Device>
void bind_products(Device& device) {
  device
      .def(
          "matmul",
          [](CpuDevice& d, const Matrix& m, uintptr_t address, const Quantized& x, const StridedFloats& y, bool add,
             uintptr_t bias, float factor) { matmul(d, m, address, x, x.codes.shape(0), y, {add, factor, floats_at(bias)}); },
          "matrix"_a, "address"_a, "x"_a, "y"_a.noconvert(), "add"_a = false, "bias"_a = 0, "factor"_a = 1.0f, ReleaseGil())
      .def(
          "matmul",
          [](CpuDevice& d, const Matrix& m, uintptr_t address, const Floats& x, const StridedFloats& y, bool add,
             uintptr_t bias, float factor) { matmul(d, m, address, x, x.shape(0), y, {add, factor, floats_at(bias)}); },
          "matrix"_a, "address"_a, "x"_a.noconvert(), "y"_a.noconvert(), "add"_a = false, "bias"_a = 0, "factor"_a = 1.0f,
          ReleaseGil());
}

NormedOutput output(const Rows& x, const Norm& norm, const Floats& to) {
  require(norm.columns <= x.stride && norm.columns <= static_cast<int>(to.shape(1)) && static_cast<int>(to.shape(0)) == x.rows,
          "norm: shapes differ");
  return {to.data(), static_cast<int64_t>(to.shape(1)), {}};
}

NormedOutput output(const Rows& x, const Norm& norm, const Quantized& to) {
  return {nullptr, 0, to.output(x, norm.columns, "norm: shapes differ")};
}

template <typename To>
void bind_norm(nb::class_<CpuDevice>& device) {
  device.def(
      "norm",
      [](CpuDevice& d, const Floats& x, const Norm& norm, const To& to) { d.norm(rows(x), norm, output(rows(x), norm, to)); },
      "x"_a.noconvert(), "norm"_a, "to"_a.noconvert(), ReleaseGil());
}

using Ids = Array<int32_t, 2>;
using Gates = std::optional<Array<float, 1>>;

void route(CpuDevice& device, const Rows& x, const Norm& norm, const NormedOutput& to, const Router& router,
           const ChosenExperts& chosen) {
  require(router.choice.experts + (chosen.gates ? 1 : 0) <= router.columns, "route: the router has too few columns");
  device.route(x, norm, to, router, chosen);
}

ChosenExperts chosen(const Rows& x, const Router& router, const Ids& ids, const Floats& weights, const Gates& gates) {
  const size_t rows = x.rows, top_k = router.choice.top_k;
  require(ids.shape(0) == rows && weights.shape(0) == rows && (!gates || gates->shape(0) == rows), "route: rows differ");
  require(ids.shape(1) == top_k && weights.shape(1) == top_k, "route: ids and weights must have top_k columns");
  return {ids.data(), weights.data(), gates ? gates->data() : nullptr};
}

template <typename To>
void bind_route(nb::class_<CpuDevice>& device) {
  device.def(
      "route",
      [](CpuDevice& d, const Floats& x, const Norm& norm, const To& to, const Router& router, const Ids& ids,
         const Floats& weights, const Gates& gates) {
        route(d, rows(x), norm, output(rows(x), norm, to), router, chosen(rows(x), router, ids, weights, gates));
      },
      "x"_a.noconvert(), "norm"_a, "to"_a.noconvert(), "router"_a, "ids"_a.noconvert(), "weights"_a.noconvert(),
      "gates"_a.noconvert().none() = nb::none(), ReleaseGil());
}

void bind_predict(nb::class_<CpuDevice>& device) {
  device.def(
      "predict",
      [](CpuDevice& d, const Floats& x, const Norm& norm, const Router& router, const Ids& ids, const Floats& weights) {
        require(norm.columns <= static_cast<int>(x.shape(1)), "norm: shapes differ");
        route(d, rows(x), norm, {}, router, chosen(rows(x), router, ids, weights, {}));
      },
      "x"_a.noconvert(), "norm"_a, "router"_a, "ids"_a.noconvert(), "weights"_a.noconvert(), ReleaseGil());
}

template <typename Device>
void bind_rows(Device& device) {
  device
      .def(
          "quantize",
          [](CpuDevice& d, const Floats& x, int columns, const Quantized& to) {
            d.quantize(rows(x), columns, to.output(rows(x), columns, "quantize: shapes differ"));
          },
          "x"_a.noconvert(), "columns"_a, "to"_a, ReleaseGil())
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
          "bound"_a = 0.0f, ReleaseGil());
}

template <typename Device>
void bind_attention_and_router(Device& device) {
  device
      .def(
          "store_key_values",
          [](CpuDevice& d, const Attention& a, const Floats& keys, const Floats& values, const Array<int32_t, 1>& to,
             const Bytes& all_keys, const Bytes& all_values, int64_t capacity) {
            require(keys.shape(0) == values.shape(0) &&
                        static_cast<int>(keys.shape(1)) >= a.shape.kv_heads * a.shape.head_dim &&
                        static_cast<int>(values.shape(1)) >= a.shape.kv_heads * a.shape.value_dim,
                    "keys and values do not fit the heads");
            check_rows(to, keys.shape(0), capacity, "a key's row is out of range");
            d.store_key_values(a.shape, rows(keys), rows(values), to.data(),
                               a.key_values(all_keys, all_values, capacity, d.kv_element_bytes()));
          },
          "attention"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "rows"_a.noconvert(), "all_keys"_a.noconvert(),
          "all_values"_a.noconvert(), "capacity"_a, ReleaseGil())
      .def(
          "attention",
          [](CpuDevice& d, const Attention& a, const Floats& queries, const Array<int32_t, 1>& positions,
             const Array<int32_t, 1>& bases, const Bytes& keys, const Bytes& values, int64_t capacity, const Floats& out,
             uintptr_t sinks) {
            require(static_cast<int>(queries.shape(1)) >= a.shape.heads * a.shape.head_dim &&
                        static_cast<int>(out.shape(1)) >= a.shape.heads * a.shape.value_dim && out.shape(0) == queries.shape(0),
                    "queries do not fit the heads");
            check_rows(positions, queries.shape(0), capacity, "a position is out of range");
            check_rows(bases, queries.shape(0), capacity, "a base is out of range");
            for (size_t i = 0; i < queries.shape(0); i++)
              require(bases.data()[i] % kKeyRun == 0 && bases.data()[i] + positions.data()[i] < capacity,
                      "a query's keys are out of range");
            d.attention(a.shape, rows(queries), positions.data(), bases.data(),
                        a.key_values(keys, values, capacity, d.kv_element_bytes()), floats_at(sinks), rows(out));
          },
          "attention"_a, "queries"_a.noconvert(), "positions"_a.noconvert(), "bases"_a.noconvert(), "keys"_a.noconvert(),
          "values"_a.noconvert(), "capacity"_a, "out"_a.noconvert(), "sinks"_a = 0, ReleaseGil())
      .def(
          "scatter_add",
          [](CpuDevice& d, const Floats& x, const Array<int32_t, 1>& to, const Array<float, 1>& weights, const Floats& y) {
            require(x.shape(1) == y.shape(1) && weights.shape(0) == x.shape(0), "scatter: shapes differ");
            check_rows(to, x.shape(0), static_cast<int64_t>(y.shape(0)), "a row of the result is out of range");
            d.scatter_add(rows(x), {to.data(), weights.data()}, rows(y));
          },
          "x"_a.noconvert(), "to"_a.noconvert(), "weights"_a.noconvert(), "y"_a.noconvert(), ReleaseGil());
}

}  // namespace

void bind_device(nb::module_& m) {
  m.attr("KEY_RUN") = kKeyRun;
  bind_shapes(m);
  auto device = nb::class_<CpuDevice>(m, "CpuDevice")
                    .def(
                        "__init__",
                        [](CpuDevice* self, int threads, bool exact_attention) {
                          require(threads >= 1 && threads <= 1024, "threads must lie in 1..1024");
                          new (self) CpuDevice(threads, exact_attention);
                        },
                        "threads"_a, "exact_attention"_a = false)
                    .def_prop_ro("kv_element_bytes", &CpuDevice::kv_element_bytes)
                    .def_prop_ro("variant", &CpuDevice::variant)
                    .def_prop_ro("threads", &CpuDevice::threads);
  bind_products(device);
  bind_experts(m, device);
  bind_norm<Quantized>(device);
  bind_norm<Floats>(device);
  bind_route<Quantized>(device);
  bind_route<Floats>(device);
  bind_predict(device);
  bind_rows(device);
  bind_attention_and_router(device);
  bind_measuring(device);
  m.def("variants", [] {
    std::vector<std::string> names;
    for (const char* const* n = available_kernels(); *n; n++) names.emplace_back(*n);
    return names;
  });
}

}  // namespace estream::binding
