// FlashAttention as in attention.inl.h, but a SIMD vector holds sixteen keys of one query: for element types whose
// instructions multiply several neighbouring elements. A template parameter computes scores and weighted values.
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// The scratch of one job, divided.
struct AttentionBlock {
  const AttentionJob& job;
  int64_t value_stride;
  float* scores;              // [kQueryBlock, kKeyBlock]
  float* accumulator;         // [kQueryBlock, value_stride]
  uint16_t* queries16;        // [kQueryBlock, head_dim], for bfloat16
  uint16_t* probabilities16;  // [kQueryBlock, kKeyBlock], for bfloat16
};

// Online softmax for one query: masks the keys after it and before its window, and turns its row of scores into
// probabilities. Updates row_max and row_sum; returns the factor by which the accumulator must be rescaled.
inline float softmax_row(float* scores, int first_key, int position, int window, float scale, float& row_max, float& row_sum) {
  for (int k = position - first_key + 1 > 0 ? position - first_key + 1 : 0; k < kKeyBlock; k++) scores[k] = -1e30f;
  if (window > 0) {
    const int hidden = position - window + 1 - first_key;
    if (hidden >= kKeyBlock) {
      // Only another query of the block sees these keys. Probabilities of zero leave this query's accumulator as it is.
      for (int k = 0; k < kKeyBlock; k++) scores[k] = 0.0f;
      return 1.0f;
    }
    for (int k = 0; k < hidden; k++) scores[k] = -1e30f;
  }
  const F16 s = set1(scale);
  F16 largest = load(scores);
  for (int k = 16; k < kKeyBlock; k += 16) largest = max(largest, load(scores + k));
  // Scaling is monotonic, and masked scores stay far below every other.
  const float block_maximum = reduce_max(largest) * scale;
  const float updated = block_maximum > row_max ? block_maximum : row_max;
  float rescale[16];
  store(rescale, exp(set1(row_max - updated)));
  F16 sum = zero();
  for (int k = 0; k < kKeyBlock; k += 16) {
    const F16 p = exp(load(scores + k) * s - set1(updated));
    store(scores + k, p);
    sum = sum + p;
  }
  row_max = updated;
  row_sum = row_sum * rescale[0] + reduce_add(sum);
  return rescale[0];
}

// MATH::prepare(block) prepares the queries. MATH::scores(block, first, last) fills the scores of the kKeyBlock keys from
// `first` on, at most up to `last`. MATH::values(block, first, last) adds the weighted values of those keys to the accumulator.
template <typename MATH>
inline void attend(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* accumulator = scores + kQueryBlock * kKeyBlock;
  float* row_max = accumulator + kQueryBlock * value_stride;
  float* row_sum = row_max + kQueryBlock;
  auto* probabilities16 = reinterpret_cast<uint16_t*>(row_sum + kQueryBlock);
  const AttentionBlock block = {
      job, value_stride, scores, accumulator, probabilities16 + kQueryBlock * kKeyBlock, probabilities16};
  int earliest = job.positions[0], last = 0;
  for (int r = 0; r < job.rows; r++) {
    // A sink acts as a first key that has this score and a value of zero.
    row_max[r] = job.sink ? *job.sink : -1e30f;
    row_sum[r] = job.sink ? 1.0f : 0.0f;
    earliest = job.positions[r] < earliest ? job.positions[r] : earliest;
    last = job.positions[r] > last ? job.positions[r] : last;
  }
  const int begin = job.window > 0 && earliest >= job.window ? (earliest - job.window + 1) / kKeyBlock * kKeyBlock : 0;
  for (int64_t i = 0; i < kQueryBlock * value_stride; i++) accumulator[i] = 0.0f;
  MATH::prepare(block);
  for (int first = begin; first <= last; first += kKeyBlock) {
    MATH::scores(block, first, last);
    for (int r = 0; r < job.rows; r++) {
      const float rescale =
          softmax_row(scores + r * kKeyBlock, first, job.positions[r], job.window, job.scale, row_max[r], row_sum[r]);
      if (rescale != 1.0f)
        for (int64_t i = 0; i < value_stride; i += 16) {
          float* s = accumulator + r * value_stride + i;
          store(s, load(s) * set1(rescale));
        }
    }
    MATH::values(block, first, last);
  }
  for (int r = 0; r < job.rows; r++) {
    const F16 inverse = set1(1.0f / row_sum[r]);
    float* out = job.out + r * job.out_stride;
    int i = 0;
    for (; i + 16 <= job.value_dim; i += 16) store(out + i, load(accumulator + r * value_stride + i) * inverse);
    if (i < job.value_dim) store_part(out + i, load(accumulator + r * value_stride + i) * inverse, job.value_dim - i);
  }
}

}  // namespace estream::ESTREAM_VARIANT
