// Causal attention that never builds the matrix of scores: blocks of queries walk over blocks of keys, keeping a running
// maximum and sum per query. Source: T. Dao et al., FlashAttention (arXiv 2205.14135); online softmax: M. Milakov and
// N. Gimelshein (arXiv 1805.02867). Key blocks are counted from the sequence's start and a masked key adds an exact
// zero, so a query's result does not depend on the queries beside it.
//
// How scores and weighted values are computed is a parameter; sixteen keys lie in a vector. For types whose instructions
// multiply several neighbouring elements; float32 has attention.inl.h.
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// The scratch of one job, cut up.
struct AttentionBlock {
  const AttentionJob& job;
  int64_t value_stride;
  float* scores;        // [kQueryBlock, kKeysAtOnce]
  float* sums;          // [kQueryBlock, value_stride]
  uint16_t* queries16;  // [kQueryBlock, head_dim], for bfloat16
  uint16_t* weights16;  // [kQueryBlock, kKeysAtOnce], for bfloat16
};

// Turns one row of scores into weights, masking keys after the query and before its window; updates maximum and sum, returns
// the factor by which what was summed before must shrink.
inline float softmax_row(float* scores, int first_key, int position, int window, float scale, float& maximum, float& total) {
  for (int k = position - first_key + 1 > 0 ? position - first_key + 1 : 0; k < kKeysAtOnce; k++) scores[k] = -1e30f;
  if (window > 0) {
    const int hidden = position - window + 1 - first_key;
    if (hidden >= kKeysAtOnce) {
      // A query beside this one sees these keys. Weights of zero leave this one's sums as they are.
      for (int k = 0; k < kKeysAtOnce; k++) scores[k] = 0.0f;
      return 1.0f;
    }
    for (int k = 0; k < hidden; k++) scores[k] = -1e30f;
  }
  const F16 s = set1(scale);
  F16 largest = load(scores);
  for (int k = 16; k < kKeysAtOnce; k += 16) largest = max(largest, load(scores + k));
  // Scaling is monotonic, and masked scores stay far below every other.
  const float block_maximum = largest_lane(largest) * scale;
  const float updated = block_maximum > maximum ? block_maximum : maximum;
  float shrink[16];
  store(shrink, exp(set1(maximum - updated)));
  F16 sum = zero();
  for (int k = 0; k < kKeysAtOnce; k += 16) {
    const F16 p = exp(load(scores + k) * s - set1(updated));
    store(scores + k, p);
    sum = sum + p;
  }
  maximum = updated;
  total = total * shrink[0] + sum_tree(sum);
  return shrink[0];
}

// MATH::prepare(block), MATH::scores(block, first, last) fills the scores of keys first .. first + 63 as far as `last`,
// MATH::values(block, first, last) adds the weighted values of those keys to the sums.
template <typename MATH>
inline void attend(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* sums = scores + kQueryBlock * kKeysAtOnce;
  float* maximum = sums + kQueryBlock * value_stride;
  float* total = maximum + kQueryBlock;
  auto* weights16 = reinterpret_cast<uint16_t*>(total + kQueryBlock);
  const AttentionBlock block = {job, value_stride, scores, sums, weights16 + kQueryBlock * kKeysAtOnce, weights16};
  int earliest = job.positions[0], last = 0;
  for (int r = 0; r < job.rows; r++) {
    // A sink is a key with this score and a value of zero, read before all others.
    maximum[r] = job.sink ? *job.sink : -1e30f;
    total[r] = job.sink ? 1.0f : 0.0f;
    earliest = job.positions[r] < earliest ? job.positions[r] : earliest;
    last = job.positions[r] > last ? job.positions[r] : last;
  }
  const int begin = job.window > 0 && earliest >= job.window ? (earliest - job.window + 1) / kKeysAtOnce * kKeysAtOnce : 0;
  for (int64_t i = 0; i < kQueryBlock * value_stride; i++) sums[i] = 0.0f;
  MATH::prepare(block);
  for (int first = begin; first <= last; first += kKeysAtOnce) {
    MATH::scores(block, first, last);
    for (int r = 0; r < job.rows; r++) {
      const float shrink =
          softmax_row(scores + r * kKeysAtOnce, first, job.positions[r], job.window, job.scale, maximum[r], total[r]);
      if (shrink != 1.0f)
        for (int64_t i = 0; i < value_stride; i += 16) {
          float* s = sums + r * value_stride + i;
          store(s, load(s) * set1(shrink));
        }
    }
    MATH::values(block, first, last);
  }
  for (int r = 0; r < job.rows; r++) {
    const F16 inverse = set1(1.0f / total[r]);
    float* out = job.out + r * job.out_stride;
    int i = 0;
    for (; i + 16 <= job.value_dim; i += 16) store(out + i, load(sums + r * value_stride + i) * inverse);
    if (i < job.value_dim) store_part(out + i, load(sums + r * value_stride + i) * inverse, job.value_dim - i);
  }
}

}  // namespace estream::ESTREAM_VARIANT
