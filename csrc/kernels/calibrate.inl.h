// Chooses the 4-bit codes of a panel so that its products with known inputs change least. Vectors hold one weight of each of
// the panel's 32 outputs. There is no fused multiply-add, so every variant makes the same package.
#pragma once
#include <cstring>

#include "kernels/pack.inl.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kColumnsAtOnce = 4;
constexpr int kCandidates = 16;

inline uint16_t float_to_half(float value) {
  uint16_t halves[16];
  store_half(halves, set1(value));
  return halves[0];
}
inline float rounded_to_half(float value) {
  float floats[16];
  store(floats, rounded_to_half(set1(value)));
  return floats[0];
}

// One float for each output of a panel.
struct PanelVector {
  F16 low, high;
};
inline PanelVector load_panel(const float* p) { return {load(p), load(p + 16)}; }
inline void store_panel(float* p, PanelVector a) {
  store(p, a.low);
  store(p + 16, a.high);
}
template <typename Function>
inline PanelVector by_halves(Function f) {
  return {f(&PanelVector::low), f(&PanelVector::high)};
}
// a + factor * b
inline PanelVector plus_scaled(PanelVector a, float factor, PanelVector b) {
  const F16 f = set1(factor);
  return by_halves([&](auto half) { return a.*half + f * (b.*half); });
}
inline PanelVector nearest_code(PanelVector x) {
  return by_halves([&](auto half) { return round(max(min(x.*half, set1(7.0f)), set1(-8.0f))); });
}

// sums[c] += factors[c * stride + i] * columns[i] over i < count, for kColumnsAtOnce neighbouring c.
inline void add_products(const float* factors, int64_t stride, const float* columns, int count, PanelVector* sums) {
  PanelVector s[kColumnsAtOnce];
  for (int c = 0; c < kColumnsAtOnce; c++) s[c] = sums[c];
  for (int i = 0; i < count; i++) {
    const PanelVector column = load_panel(columns + i * kPanel);
    for (int c = 0; c < kColumnsAtOnce; c++) s[c] = plus_scaled(s[c], factors[c * stride + i], column);
  }
  for (int c = 0; c < kColumnsAtOnce; c++) sums[c] = s[c];
}

// The divisor of a candidate scale, which is -signed_absmax / divisor. There are kCandidates of them.
inline float divisor_of(int group, int candidate) {
  const float lowest = group == 32 ? 7.0f : group == 64 ? 7.25f : 7.5f;
  const float highest = group == 32 ? 9.0f : group == 64 ? 9.5f : 10.0f;
  return lowest + static_cast<float>(candidate) * (highest - lowest) / static_cast<float>(kCandidates - 1);
}

// The scale that leaves an error orthogonal to the weights, unless it is far from the one that chose the codes.
inline float stretched_scale(float coding, float xx, float xq) {
  if (coding == 0.0f || xq == 0.0f) return coding;
  const float stretched = rounded_to_half(xx / xq), ratio = stretched / coding;
  return ratio > 0.85f && ratio < 1.15f ? stretched : coding;
}

// The scales of one group: of each output, the candidate with the least error, weighted by the inputs' second moments.
inline void weighted_scales(const float* weights, const float* moments, int64_t stride, int group, float* scales) {
  float signed_absmax[kPanel] = {};
  for (int k = 0; k < group; k++)
    for (int output = 0; output < kPanel; output++) {
      const float w = weights[k * kPanel + output];
      if (__builtin_fabsf(w) > __builtin_fabsf(signed_absmax[output])) signed_absmax[output] = w;
    }
  float best[kPanel], coding[kPanel] = {}, xx[kPanel], xq[kPanel];
  for (int candidate = 0; candidate < kCandidates; candidate++) {
    float scale[kPanel], inverse[kPanel], errors[kPanel], squares[kPanel], products[kPanel];
    for (int output = 0; output < kPanel; output++) {
      scale[output] = rounded_to_half(-signed_absmax[output] / divisor_of(group, candidate));
      inverse[output] = scale[output] != 0.0f ? 1.0f / scale[output] : 0.0f;
    }
    const PanelVector s = load_panel(scale), r = load_panel(inverse);
    PanelVector error = {zero(), zero()}, square = error, product = error;
    for (int k = 0; k < group; k++) {
      const PanelVector w = load_panel(weights + k * kPanel);
      const PanelVector q = nearest_code(by_halves([&](auto half) { return w.*half * (r.*half); }));
      const float moment = moments[k * stride + k];
      error = plus_scaled(error, moment, by_halves([&](auto half) {
                            const F16 d = w.*half - s.*half * (q.*half);
                            return d * d;
                          }));
      square = plus_scaled(square, moment, by_halves([&](auto half) { return w.*half * (w.*half); }));
      product = plus_scaled(product, moment, by_halves([&](auto half) { return w.*half * (q.*half); }));
    }
    store_panel(errors, error);
    store_panel(squares, square);
    store_panel(products, product);
    for (int output = 0; output < kPanel; output++) {
      if (scale[output] == 0.0f || (coding[output] != 0.0f && errors[output] >= best[output])) continue;
      best[output] = errors[output];
      coding[output] = scale[output];
      xx[output] = squares[output];
      xq[output] = products[output];
    }
  }
  for (int output = 0; output < kPanel; output++) scales[output] = stretched_scale(coding[output], xx[output], xq[output]);
}

// Chooses the codes of one column for the target, which accounts for the errors of other columns. Stores the remaining error.
inline void choose_code(const CalibratedPanel& p, int column, PanelVector target, float* error) {
  const int group = column / p.group * kPanel, at = column * kPanel;
  const PanelVector scale = load_panel(p.scales + group), inverse = load_panel(p.inverses + group);
  const PanelVector weight = load_panel(p.weights + at);
  const PanelVector code = nearest_code(by_halves([&](auto half) { return target.*half * (inverse.*half); }));
  store_panel(p.codes + at, code);
  store_panel(error, by_halves([&](auto half) { return weight.*half - scale.*half * (code.*half); }));
}

// GPTQ (arXiv 2210.17323) in the form of LDLQ (QuIP, arXiv 2307.13304), which needs no inverse: inputs follow one by one in the
// given order, and each code compensates for the errors before it. Leaves the errors, in that order, in p.scratch.
inline void round_in_order(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += kColumnsAtOnce) {
    PanelVector targets[kColumnsAtOnce];
    for (int c = 0; c < kColumnsAtOnce; c++) targets[c] = load_panel(p.weights + int64_t{p.order[first + c]} * kPanel);
    add_products(p.feedback + first * n, n, p.scratch, first, targets);
    for (int c = 0; c < kColumnsAtOnce; c++) {
      float* error = p.scratch + (first + c) * kPanel;
      choose_code(p, p.order[first + c], targets[c], error);
      for (int later = c + 1; later < kColumnsAtOnce; later++)
        targets[later] = plus_scaled(targets[later], p.feedback[(first + later) * n + first + c], load_panel(error));
    }
  }
}

// One pass of coordinate descent: gives every input the code that is best while all others stay.
inline void improve_codes(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += kColumnsAtOnce) {
    PanelVector gradients[kColumnsAtOnce] = {};
    add_products(p.moments + first * n, n, p.errors, p.inputs, gradients);
    for (int c = 0; c < kColumnsAtOnce; c++) {
      const int column = first + c;
      float* error = p.errors + column * kPanel;
      const PanelVector before = load_panel(error);
      const float* moments = p.moments + column * n;
      // The weight that would cancel the effect of the other errors: weight + (gradient - moment * error) / moment.
      const float inverse = 1.0f / moments[column];
      const PanelVector weight = load_panel(p.weights + column * kPanel);
      const PanelVector target =
          by_halves([&](auto half) { return weight.*half + (gradients[c].*half * set1(inverse) - before.*half); });
      choose_code(p, column, target, error);
      const PanelVector after = load_panel(error);
      const PanelVector change = by_halves([&](auto half) { return after.*half - before.*half; });
      for (int later = c + 1; later < kColumnsAtOnce; later++)
        gradients[later] = plus_scaled(gradients[later], moments[first + later], change);
    }
  }
}

inline void calibrate_panel(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += p.group) {
    weighted_scales(p.weights + first * kPanel, p.moments + first * (n + 1), n, p.group, p.scales + first / p.group * kPanel);
    for (int output = 0; output < kPanel; output++) {
      const int at = first / p.group * kPanel + output;
      p.inverses[at] = p.scales[at] != 0.0f ? 1.0f / p.scales[at] : 0.0f;
      p.halves[at] = float_to_half(p.scales[at]);
    }
  }
  round_in_order(p);
  for (int i = 0; i < p.inputs; i++)
    std::memcpy(p.errors + int64_t{p.order[i]} * kPanel, p.scratch + i * kPanel, kPanel * sizeof(float));
  improve_codes(p);
}

}  // namespace estream::ESTREAM_VARIANT
