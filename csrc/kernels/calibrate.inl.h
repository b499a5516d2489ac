// Choosing the 4-bit codes of a panel so that its products with known inputs change least. The panel's 32 outputs are lanes.
// Written without fused products, so that every variant makes the same package.
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

struct Lanes {
  F16 low, high;
};
inline Lanes load_lanes(const float* p) { return {load(p), load(p + 16)}; }
inline void store_lanes(float* p, Lanes a) {
  store(p, a.low);
  store(p + 16, a.high);
}
template <typename Function>
inline Lanes by_halves(Function f) {
  return {f(&Lanes::low), f(&Lanes::high)};
}
// a + factor * b
inline Lanes plus_scaled(Lanes a, float factor, Lanes b) {
  const F16 f = set1(factor);
  return by_halves([&](auto half) { return a.*half + f * (b.*half); });
}
inline Lanes nearest_code(Lanes x) {
  return by_halves([&](auto half) { return round(max(min(x.*half, set1(7.0f)), set1(-8.0f))); });
}

// sums[c] += factors[c * stride + i] * columns[i] over i < count, for kColumnsAtOnce neighbouring c.
inline void add_products(const float* factors, int64_t stride, const float* columns, int count, Lanes* sums) {
  Lanes s[kColumnsAtOnce];
  for (int c = 0; c < kColumnsAtOnce; c++) s[c] = sums[c];
  for (int i = 0; i < count; i++) {
    const Lanes column = load_lanes(columns + i * kPanel);
    for (int c = 0; c < kColumnsAtOnce; c++) s[c] = plus_scaled(s[c], factors[c * stride + i], column);
  }
  for (int c = 0; c < kColumnsAtOnce; c++) sums[c] = s[c];
}

// Candidate scales are -peak / divisor, as in search_scales (pack.inl.h), but sixteen of them.
inline float divisor_of(int group, int candidate) {
  const float lowest = group == 32 ? 7.0f : group == 64 ? 7.25f : 7.5f;
  const float highest = group == 32 ? 9.0f : group == 64 ? 9.5f : 10.0f;
  return lowest + static_cast<float>(candidate) * (highest - lowest) / static_cast<float>(kCandidates - 1);
}

// The scale that leaves an error orthogonal to the weights, unless it is far from the one that the codes were chosen by.
inline float stretched_scale(float coding, float xx, float xq) {
  if (coding == 0.0f || xq == 0.0f) return coding;
  const float stretched = rounded_to_half(xx / xq), ratio = stretched / coding;
  return ratio > 0.85f && ratio < 1.15f ? stretched : coding;
}

// The scales of one group: the candidate of the least error, as each input's moment weighs it.
inline void weighted_scales(const float* weights, const float* moments, int64_t stride, int group, float* scales) {
  float peak[kPanel] = {};
  for (int k = 0; k < group; k++)
    for (int lane = 0; lane < kPanel; lane++) {
      const float w = weights[k * kPanel + lane];
      if (__builtin_fabsf(w) > __builtin_fabsf(peak[lane])) peak[lane] = w;
    }
  float best[kPanel], coding[kPanel] = {}, xx[kPanel], xq[kPanel];
  for (int candidate = 0; candidate < kCandidates; candidate++) {
    float scale[kPanel], inverse[kPanel], errors[kPanel], squares[kPanel], products[kPanel];
    for (int lane = 0; lane < kPanel; lane++) {
      scale[lane] = rounded_to_half(-peak[lane] / divisor_of(group, candidate));
      inverse[lane] = scale[lane] != 0.0f ? 1.0f / scale[lane] : 0.0f;
    }
    const Lanes s = load_lanes(scale), r = load_lanes(inverse);
    Lanes error = {zero(), zero()}, square = error, product = error;
    for (int k = 0; k < group; k++) {
      const Lanes w = load_lanes(weights + k * kPanel);
      const Lanes q = nearest_code(by_halves([&](auto half) { return w.*half * (r.*half); }));
      const float moment = moments[k * stride + k];
      error = plus_scaled(error, moment, by_halves([&](auto half) {
                            const F16 d = w.*half - s.*half * (q.*half);
                            return d * d;
                          }));
      square = plus_scaled(square, moment, by_halves([&](auto half) { return w.*half * (w.*half); }));
      product = plus_scaled(product, moment, by_halves([&](auto half) { return w.*half * (q.*half); }));
    }
    store_lanes(errors, error);
    store_lanes(squares, square);
    store_lanes(products, product);
    for (int lane = 0; lane < kPanel; lane++) {
      if (scale[lane] == 0.0f || (coding[lane] != 0.0f && errors[lane] >= best[lane])) continue;
      best[lane] = errors[lane];
      coding[lane] = scale[lane];
      xx[lane] = squares[lane];
      xq[lane] = products[lane];
    }
  }
  for (int lane = 0; lane < kPanel; lane++) scales[lane] = stretched_scale(coding[lane], xx[lane], xq[lane]);
}

// The code of one column, given what it should be after the errors of the others, and the error that remains of it.
inline void choose_code(const CalibratedPanel& p, int column, Lanes target, float* error) {
  const int group = column / p.group * kPanel, at = column * kPanel;
  const Lanes scale = load_lanes(p.scales + group), inverse = load_lanes(p.inverses + group);
  const Lanes weight = load_lanes(p.weights + at);
  const Lanes code = nearest_code(by_halves([&](auto half) { return target.*half * (inverse.*half); }));
  store_lanes(p.codes + at, code);
  store_lanes(error, by_halves([&](auto half) { return weight.*half - scale.*half * (code.*half); }));
}

// One input after the other, in the order given, each code making up for the errors made before it: GPTQ (arXiv 2210.17323)
// in the form of LDLQ (QuIP, arXiv 2307.13304), which needs no inverse. Leaves the errors in that order in p.scratch.
inline void round_in_order(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += kColumnsAtOnce) {
    Lanes targets[kColumnsAtOnce];
    for (int c = 0; c < kColumnsAtOnce; c++) targets[c] = load_lanes(p.weights + int64_t{p.order[first + c]} * kPanel);
    add_products(p.feedback + first * n, n, p.scratch, first, targets);
    for (int c = 0; c < kColumnsAtOnce; c++) {
      float* error = p.scratch + (first + c) * kPanel;
      choose_code(p, p.order[first + c], targets[c], error);
      for (int later = c + 1; later < kColumnsAtOnce; later++)
        targets[later] = plus_scaled(targets[later], p.feedback[(first + later) * n + first + c], load_lanes(error));
    }
  }
}

// Visits every input once more and gives it the code that is best while all others stay: coordinate descent.
inline void improve_codes(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += kColumnsAtOnce) {
    Lanes gradients[kColumnsAtOnce] = {};
    add_products(p.moments + first * n, n, p.errors, p.inputs, gradients);
    for (int c = 0; c < kColumnsAtOnce; c++) {
      const int column = first + c;
      float* error = p.errors + column * kPanel;
      const Lanes before = load_lanes(error);
      const float* moments = p.moments + column * n;
      // The weight that would cancel what the others' errors do: weight + (gradient - moment * error) / moment.
      const float inverse = 1.0f / moments[column];
      const Lanes weight = load_lanes(p.weights + column * kPanel);
      const Lanes target =
          by_halves([&](auto half) { return weight.*half + (gradients[c].*half * set1(inverse) - before.*half); });
      choose_code(p, column, target, error);
      const Lanes after = load_lanes(error);
      const Lanes change = by_halves([&](auto half) { return after.*half - before.*half; });
      for (int later = c + 1; later < kColumnsAtOnce; later++)
        gradients[later] = plus_scaled(gradients[later], moments[first + later], change);
    }
  }
}

inline void calibrate_panel(const CalibratedPanel& p) {
  const int64_t n = p.inputs;
  for (int first = 0; first < p.inputs; first += p.group) {
    weighted_scales(p.weights + first * kPanel, p.moments + first * (n + 1), n, p.group, p.scales + first / p.group * kPanel);
    for (int lane = 0; lane < kPanel; lane++) {
      const int at = first / p.group * kPanel + lane;
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
