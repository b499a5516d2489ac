// Choosing codes for weights whose inputs are known; for conversion with a calibration text.
#include "core/calibrate.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

// Chooses on its own threads.
class CodeChooser {
 public:
  explicit CodeChooser(int threads) : pool_(threads) {}

  void choose(const Array<const float, 2>& weights, const Array<const float, 2>& moments, const Array<const float, 2>& feedback,
              const Array<const int32_t, 1>& order, int group, const Array<int8_t, 2>& codes,
              const Array<uint16_t, 2>& scales) {
    const size_t rows = weights.shape(0), inputs = order.shape(0), columns = weights.shape(1);
    require(group == 32 || group == 64 || group == 128, "group must be 32, 64 or 128");
    require(inputs > 0 && inputs % static_cast<size_t>(group) == 0, "inputs must be a multiple of group");
    require(columns >= 1 && columns <= inputs, "columns do not fit the inputs");
    for (const auto* matrix : {&moments, &feedback})
      require(matrix->shape(0) == inputs && matrix->shape(1) == inputs, "moments and feedback must be [inputs, inputs]");
    for (size_t i = 0; i < inputs; i++)
      require(order.data()[i] >= 0 && static_cast<size_t>(order.data()[i]) < inputs, "order names an input that is not there");
    require(codes.shape(0) == rows && codes.shape(1) == inputs, "codes must be [rows, inputs]");
    require(scales.shape(0) == rows && scales.shape(1) == inputs / static_cast<size_t>(group), "every group needs one scale");
    choose_codes(pool_, select_kernels(), weights.data(), static_cast<int>(rows), static_cast<int>(columns),
                 {moments.data(), feedback.data(), order.data(), static_cast<int>(inputs)}, group, codes.data(), scales.data());
  }

 private:
  ThreadPool pool_;
};

}  // namespace

void bind_calibration(nb::module_& m) {
  nb::class_<CodeChooser>(m, "CodeChooser",
                          "Chooses 4-bit codes for weights whose inputs are known (docs/quantization.md), on its own threads.")
      .def(nb::init<int>(), "threads"_a)
      .def("choose", &CodeChooser::choose, "weights"_a.noconvert(), "moments"_a.noconvert(), "feedback"_a.noconvert(),
           "order"_a.noconvert(), "group"_a, "codes"_a.noconvert(), "scales"_a.noconvert(), ReleaseGil(),
           R"(Choose codes for ``weights`` [rows, columns], where missing columns up to the inputs are zero.

moments: [inputs, inputs], the second moments of the inputs (GPTQ's Hessian).
feedback: [inputs, inputs], strictly lower triangular in the order of ``order`` (LDLQ).
order: [inputs], the inputs in the order in which the first pass chooses codes.
group: 32, 64 or 128 inputs that share a scale.
codes: [rows, inputs], out, in -8..7.
scales: [rows, inputs / group], out, the bits of fp16.

The number of threads does not change the result.)");
}

}  // namespace estream::binding
