// Reductions of a row of logits, slice after slice of the vocabulary, while the head's pages pass: what softmax divides by, and
// the likeliest ids. Each walks over a slice in one fixed order, so a row's result does not depend on the rows beside it.
#pragma once
#include <cfloat>
#include <cmath>

#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Logits that one step of these loops takes.
constexpr int kHeadStep = 64;

// A sum of floats with its rounding errors, in each element of a vector: Kahan's.
struct CompensatedSum {
  F16 sum = zero(), error = zero();

  ESTREAM_INLINE void add(F16 x) {
    const F16 y = x - error, t = sum + y;
    error = (t - sum) - y;
    sum = t;
  }
  double total() const {
    float sums[16], errors[16];
    store(sums, sum);
    store(errors, error);
    double all = 0.0;
    for (int i = 0; i < 16; i++) all += static_cast<double>(sums[i]) - static_cast<double>(errors[i]);
    return all;
  }
};

inline void softmax_total(const float* x, int count, double* total) {
  F16 largest[4], strange[4];
  for (int i = 0; i < 4; i++) largest[i] = set1(-FLT_MAX), strange[i] = zero();
  int at = 0;
  for (; at + kHeadStep <= count; at += kHeadStep)
    for (int i = 0; i < 4; i++) {
      const F16 v = load(x + at + 16 * i);
      largest[i] = max(v, largest[i]);
      // Zero, unless there is an infinity or NaN.
      strange[i] = fma(v, zero(), strange[i]);
    }
  float most = reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  float wrong = reduce_add((strange[0] + strange[1]) + (strange[2] + strange[3]));
  for (int i = at; i < count; i++) {
    most = x[i] > most ? x[i] : most;
    wrong += x[i] * 0.0f;
  }
  if (!(wrong == 0.0f)) {
    total[1] = static_cast<double>(NAN);
    return;
  }
  if (static_cast<double>(most) > total[0]) {
    // The first slice finds a sum of zero.
    total[1] *= std::exp(total[0] - static_cast<double>(most));
    total[0] = static_cast<double>(most);
  }
  const F16 from = set1(static_cast<float>(total[0]));
  CompensatedSum sums[4];
  for (at = 0; at + kHeadStep <= count; at += kHeadStep)
    for (int i = 0; i < 4; i++) sums[i].add(exp(load(x + at + 16 * i) - from));
  for (; at < count; at += 16) {
    const int n = count - at < 16 ? count - at : 16;
    float parts[16];
    store(parts, exp(load_part(x + at, n) - from));
    sums[0].add(load_part(parts, n));
  }
  total[1] += (sums[0].total() + sums[1].total()) + (sums[2].total() + sums[3].total());
}

inline void likeliest(const float* x, int count, int first, int wanted, int32_t* ids, float* values) {
  const auto offer = [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      if (!(x[i] > values[wanted - 1])) continue;
      int place = wanted - 1;
      for (; place > 0 && x[i] > values[place - 1]; place--) {
        values[place] = values[place - 1];
        ids[place] = ids[place - 1];
      }
      values[place] = x[i];
      ids[place] = first + i;
    }
  };
  int at = 0;
  for (; at + kHeadStep <= count; at += kHeadStep) {
    const F16 low = max(load(x + at), load(x + at + 16)), high = max(load(x + at + 32), load(x + at + 48));
    if (reduce_max(max(low, high)) > values[wanted - 1]) offer(at, at + kHeadStep);
  }
  offer(at, count);
}

}  // namespace estream::ESTREAM_VARIANT
