// From router logits to experts.
#include <nanobind/stl/string.h>

#include <string>

#include "core/routing.h"
#include "python/binding_rows.h"

namespace estream::binding {

namespace {

Scoring scoring_named(const std::string& name) {
  if (name == "softmax") return Scoring::softmax;
  if (name == "sigmoid") return Scoring::sigmoid;
  require(name == "sparsemixer", "scoring must be softmax, sigmoid or sparsemixer");
  return Scoring::sparsemixer;
}

void check(const Routing& r) {
  require(r.experts >= 1 && r.top_k >= 1 && r.top_k <= r.experts, "routing: top_k must lie in 1..experts");
  require(r.groups >= 1 && r.groups <= kMostGroups && r.experts % r.groups == 0,
          "routing: groups must lie in 1..64 and divide the experts");
  require(r.top_groups >= 1 && r.top_groups <= r.groups, "routing: top_groups must lie in 1..groups");
  require(r.top_k <= r.experts / r.groups * r.top_groups, "routing: the best groups hold fewer than top_k experts");
  require(r.scoring != Scoring::sparsemixer || (r.top_k == 2 && r.experts >= 2 && r.groups == 1),
          "routing: sparsemixer chooses two experts without groups");
}

}  // namespace

void bind_routing(nb::module_& m) {
  nb::class_<Routing>(m, "Routing", "How a router chooses ``top_k`` of its ``experts``.")
      .def(
          "__init__",
          [](Routing* self, int experts, int top_k, const std::string& scoring, bool normalise, float scaling, int groups,
             int top_groups, float jitter) {
            const Routing routing = {experts, top_k, scoring_named(scoring), normalise, scaling, groups, top_groups, jitter};
            check(routing);
            new (self) Routing(routing);
          },
          "experts"_a, "top_k"_a, "scoring"_a = "softmax", "normalise"_a = false, "scaling"_a = 1.0f, "groups"_a = 1,
          "top_groups"_a = 1, "jitter"_a = 0.0f,
          R"(scoring: "softmax" over all experts, "sigmoid" of each expert, or "sparsemixer" (GRIN, arXiv 2409.12136).
normalise: make the weights of a token's experts sum to 1, before they are multiplied by ``scaling``.
groups: 1 to 64 equal groups of consecutive experts; only experts of the ``top_groups`` best may be chosen.
jitter: for sparsemixer, half the relative distance from which on a logit is ignored.)");
  m.def(
      "route",
      [](const Routing& routing, const Floats& logits, const Array<int32_t, 2>& ids, const Floats& weights, uintptr_t bias,
         uintptr_t correction) {
        require(routing.experts <= static_cast<int>(logits.shape(1)) && ids.shape(0) == logits.shape(0) &&
                    weights.shape(0) == logits.shape(0) && static_cast<int>(ids.shape(1)) == routing.top_k &&
                    ids.shape(1) == weights.shape(1),
                "route: shapes differ");
        route(routing, {reinterpret_cast<const float*>(bias), reinterpret_cast<const float*>(correction)}, logits.data(),
              static_cast<int>(logits.shape(0)), static_cast<int>(logits.shape(1)), ids.data(), weights.data());
      },
      "routing"_a, "logits"_a.noconvert(), "ids"_a.noconvert(), "weights"_a.noconvert(), "bias"_a = 0, "correction"_a = 0,
      ReleaseGil(),
      R"(Choose experts by ``logits`` [rows, at least experts]: fills ``ids`` and ``weights`` [rows, top_k], by falling
score, and by rising id where scores are equal.

``bias`` and ``correction`` are addresses of float32 [experts], 0 for none, as in ``Router``.)");
  m.def(
      "list_by_expert",
      [](const Array<int32_t, 2>& ids, const Floats& weights, const Array<int32_t, 1>& tokens, const Array<float, 1>& sorted,
         const Array<int64_t, 1>& starts) {
        const size_t count = ids.size();
        const int experts = static_cast<int>(starts.shape(0)) - 1;
        require(weights.shape(0) == ids.shape(0) && weights.shape(1) == ids.shape(1) && tokens.shape(0) == count &&
                    sorted.shape(0) == count && experts >= 1,
                "list_by_expert: shapes differ");
        check_rows(ids.data(), count, experts, "an expert is out of range");
        list_by_expert(ids.data(), weights.data(), static_cast<int>(ids.shape(0)), static_cast<int>(ids.shape(1)), experts,
                       tokens.data(), sorted.data(), starts.data());
      },
      "ids"_a.noconvert(), "weights"_a.noconvert(), "tokens"_a.noconvert(), "sorted_weights"_a.noconvert(),
      "starts"_a.noconvert(), ReleaseGil(),
      R"(Sort ``ids`` and ``weights`` [rows, top_k] by expert: fills ``tokens`` and ``sorted_weights`` [rows * top_k], of
which expert e owns starts[e]:starts[e + 1], with tokens in rising order. ``starts`` is [experts + 1].)");
  m.def(
      "sigmoid_gates",
      [](const Floats& logits, int column, const Array<float, 1>& gates) {
        require(column >= 0 && column < static_cast<int>(logits.shape(1)) && gates.shape(0) == logits.shape(0),
                "sigmoid_gates: shapes differ");
        sigmoid_gates(logits.data(), static_cast<int>(logits.shape(0)), static_cast<int>(logits.shape(1)), column,
                      gates.data());
      },
      "logits"_a.noconvert(), "column"_a, "gates"_a.noconvert(), ReleaseGil(),
      "Fill ``gates`` [rows] with the sigmoid of one column of ``logits`` [rows, columns].");
}

}  // namespace estream::binding
