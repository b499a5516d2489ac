// Norms and routers of the CPU device.
#include <nanobind/stl/optional.h>

#include "python/binding_rows.h"

namespace estream::binding {

namespace {

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
      "x"_a.noconvert(), "norm"_a, "to"_a.noconvert(), ReleaseGil(),
      R"(Normalise the first ``norm.columns`` of each row of ``x`` [rows, any] into ``to``, as many rows. Columns of
``to`` after them become zero.)");
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
      "gates"_a.noconvert().none() = nb::none(), ReleaseGil(),
      R"(Normalise as ``norm`` does, and choose the experts of each row: ``ids`` and ``weights`` [rows, top_k], by
falling score. ``gates`` [rows], if given, gets the sigmoid of the logit that follows the last expert's.)");
}

void bind_predict(nb::class_<CpuDevice>& device) {
  device.def(
      "predict",
      [](CpuDevice& d, const Floats& x, const Norm& norm, const Router& router, const Ids& ids, const Floats& weights) {
        require(norm.columns <= static_cast<int>(x.shape(1)), "norm: shapes differ");
        route(d, rows(x), norm, {}, router, chosen(rows(x), router, ids, weights, {}));
      },
      "x"_a.noconvert(), "norm"_a, "router"_a, "ids"_a.noconvert(), "weights"_a.noconvert(), ReleaseGil(),
      "Choose experts as ``route`` does, without keeping the normalised rows.");
}

}  // namespace

void bind_norms(nb::module_& m, nb::class_<CpuDevice>& device) {
  nb::class_<Norm>(m, "Norm", "An RMSNorm, or a LayerNorm where there is a bias.")
      .def(
          "__init__",
          [](Norm* self, uintptr_t weight, uintptr_t bias, int columns, float eps) {
            require(columns > 0, "norm: columns must be positive");
            new (self) Norm{floats_at(weight), floats_at(bias), columns, eps};
          },
          "weight"_a, "bias"_a, "columns"_a, "eps"_a,
          "``weight`` and ``bias`` are addresses of float32 [columns]; 0 for no bias.");
  nb::class_<Router>(m, "Router", "The router of a layer: its weights, and how it chooses experts.")
      .def(
          "__init__",
          [](Router* self, const Routing& choice, uintptr_t weight, int columns, uintptr_t bias, uintptr_t correction) {
            require(columns > 0 && columns % 16 == 0, "router: columns must be a multiple of 16");
            new (self) Router{choice, {floats_at(bias), floats_at(correction)}, floats_at(weight), columns};
          },
          "choice"_a, "weight"_a, "columns"_a, "bias"_a = 0, "correction"_a = 0, nb::keep_alive<1, 2>(),
          R"(All but ``choice`` are addresses of float32, 0 for none.

weight: [hidden, columns]; columns are the experts, then the gate of the shared expert if there is one, then
zeros up to a multiple of 16.
bias: [experts], added to the logits.
correction: [experts], added to the scores that choose experts, but not to their weights.)");
  bind_norm<Quantized>(device);
  bind_norm<Floats>(device);
  bind_route<Quantized>(device);
  bind_route<Floats>(device);
  bind_predict(device);
}

}  // namespace estream::binding
