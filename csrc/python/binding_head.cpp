// Reductions of logits on the CPU device.
#include "python/binding_rows.h"

namespace estream::binding {

void bind_head(nb::class_<CpuDevice>& device) {
  device
      .def(
          "softmax_totals",
          [](CpuDevice& d, const Floats& logits, const Array<double, 2>& totals) {
            require(totals.shape(0) == logits.shape(0) && totals.shape(1) == 2, "softmax_totals: totals must be [rows, 2]");
            d.softmax_totals(rows(logits), totals.data());
          },
          "logits"_a.noconvert(), "totals"_a.noconvert(), ReleaseGil(),
          R"(Take a slice of the vocabulary, ``logits`` [rows, columns], into ``totals`` float64 [rows, 2]: the largest
logit so far, and the sum of exp(logit - largest). Rows begin with -infinity and 0; a sum becomes NaN where a
logit is no finite number. Results depend on how the vocabulary is cut into slices, and on nothing else.)")
      .def(
          "likeliest",
          [](CpuDevice& d, const Floats& logits, const Array<int32_t, 1>& from, int first, const Array<int32_t, 2>& ids,
             const Floats& values) {
            const size_t count = from.shape(0);
            check_rows(from, count, static_cast<int64_t>(logits.shape(0)), "likeliest: a row is out of range");
            require(ids.shape(0) == count && values.shape(0) == count && ids.shape(1) == values.shape(1) && ids.shape(1) > 0,
                    "likeliest: ids and values must be [rows, wanted]");
            d.likeliest(rows(logits), from.data(), static_cast<int>(count), first,
                        {static_cast<int>(ids.shape(1)), ids.data(), values.data()});
          },
          "logits"_a.noconvert(), "rows"_a.noconvert(), "first"_a, "ids"_a.noconvert(), "values"_a.noconvert(), ReleaseGil(),
          R"(Take the rows ``rows`` [n] of a slice of the vocabulary, ``logits`` [any, columns], whose first column is id
``first``, into the likeliest so far: ``ids`` int32 and ``values`` [n, wanted], largest first, equal ones by
rising id. Slices come by rising id; values begin as -infinity.)");
}

}  // namespace estream::binding
