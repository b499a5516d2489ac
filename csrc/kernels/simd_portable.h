// F16 as a plain array, for any C++ compiler (simd_avx512.h).
#pragma once
#include <cstdint>
#include <cstring>

namespace estream::ESTREAM_VARIANT {

struct F16 {
  float v[16];
};

// The largest outer product whose accumulators fit into the registers: kOuterScalars scalars times kOuterVectors vectors.
constexpr int kOuterScalars = 2, kOuterVectors = 1;

template <typename Function>
inline F16 each(Function function) {
  F16 r;
  for (int i = 0; i < 16; i++) r.v[i] = function(i);
  return r;
}

inline F16 set1(float a) {
  return each([&](int) { return a; });
}
inline F16 zero() { return set1(0.0f); }
inline F16 load(const float* p) {
  F16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline void store(float* p, F16 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F16 operator+(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F16 operator-(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F16 operator*(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F16 operator/(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F16 fma(F16 a, F16 b, F16 c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F16 max(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 min(F16 a, F16 b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 abs(F16 a) {
  return each([&](int i) { return __builtin_fabsf(a.v[i]); });
}

// Adding and subtracting 1.5 * 2^23 rounds to nearest even if |a| < 2^22, which holds for every use here.
inline float round_even(float a) { return (a + 12582912.0f) - 12582912.0f; }
inline F16 round(F16 a) {
  return each([&](int i) { return round_even(a.v[i]); });
}

inline F16 keep_where_greater(F16 x, F16 y, F16 a) {
  return each([&](int i) { return x.v[i] > y.v[i] ? a.v[i] : 0.0f; });
}

inline F16 scale_by_power(F16 a, F16 n) {
  return each([&](int i) {
    const int32_t bits = (static_cast<int32_t>(n.v[i]) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return a.v[i] * power;
  });
}

inline void store_int8(int8_t* p, F16 a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(static_cast<int32_t>(round_even(a.v[i])));
}

inline float reduce_max(F16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}
inline float reduce_add(F16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
  return a.v[0];
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  uint32_t bits;
  float value;
  if (magnitude >= 0x7c00u) {
    bits = sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // Exponent and mantissa are shifted into place. Multiplying by 2^112 corrects the exponent, of subnormals too.
  bits = magnitude << 13;
  std::memcpy(&value, &bits, sizeof value);
  value *= 5.192296858534828e33f;
  return sign ? -value : value;
}
// Rounds to the nearest half, ties to even; beyond the largest half, infinity.
inline uint16_t half_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // A subnormal half counts units of 2^-24. Adding 0.5 leaves that count in the lowest bits of the mantissa.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
inline void store_half(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; i++) p[i] = half_of(a.v[i]);
}
inline F16 load_half(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}
inline F16 load_bf16(const uint16_t* p) {
  return each([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  });
}

inline F16 select_greater(F16 x, F16 y, F16 a, F16 b) {
  return each([&](int i) { return x.v[i] > y.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 load_bf16_pairs(const void* p) {
  F16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
template <typename Change>
inline F16 each_bits(F16 a, Change change) {
  uint32_t bits[16];
  std::memcpy(bits, a.v, sizeof bits);
  for (uint32_t& b : bits) b = change(b);
  std::memcpy(a.v, bits, sizeof bits);
  return a;
}
inline F16 first_bf16(F16 a) {
  return each_bits(a, [](uint32_t bits) { return bits << 16; });
}
inline F16 second_bf16(F16 a) {
  return each_bits(a, [](uint32_t bits) { return bits & 0xffff0000u; });
}
inline void transpose(F16 (&r)[16]) {
  uint32_t from[16][16], to[16][16];
  std::memcpy(from, r, sizeof from);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) to[j][i] = from[i][j];
  std::memcpy(r, to, sizeof to);
}
inline void store_bytes(uint8_t* p, F16 a, F16 b, F16 c, F16 d) {
  const F16* bytes[4] = {&a, &b, &c, &d};
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 4; j++) p[4 * i + j] = static_cast<uint8_t>(bytes[j]->v[i]);
}

struct Pairs {
  int16_t v[32];
};
struct Sums {
  int32_t v[16] = {};
};
inline Pairs pairs_of(F16 first, F16 second) {
  Pairs r;
  for (int i = 0; i < 16; i++) {
    r.v[2 * i] = static_cast<int16_t>(static_cast<int32_t>(round_even(first.v[i])));
    r.v[2 * i + 1] = static_cast<int16_t>(static_cast<int32_t>(round_even(second.v[i])));
  }
  return r;
}
inline Pairs load_pairs(const int16_t* p) {
  Pairs r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline void store_pairs(int16_t* p, Pairs a) { std::memcpy(p, a.v, sizeof a.v); }
inline Pairs rounded_product(Pairs a, Pairs b) {
  for (int i = 0; i < 32; i++) a.v[i] = static_cast<int16_t>((a.v[i] * b.v[i] + (1 << 14)) >> 15);
  return a;
}
inline Pairs bounded(Pairs a, int16_t lowest, int16_t highest) {
  for (int16_t& v : a.v) v = v > highest ? highest : v < lowest ? lowest : v;
  return a;
}
inline Sums add_products(Sums sums, Pairs a, Pairs b) {
  for (int i = 0; i < 16; i++) sums.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
  return sums;
}
inline F16 floats_of(Sums sums) {
  return each([&](int i) { return static_cast<float>(sums.v[i]); });
}

}  // namespace estream::ESTREAM_VARIANT
