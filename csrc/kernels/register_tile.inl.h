// Outer products of scalars and vectors whose sums stay in registers.
#pragma once
#include <utility>

#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Cuts sixteen scalars into register tiles of nearly equal size. Calls function(begin, indices) for each.
template <int BEGIN = 0, typename Function>
ESTREAM_INLINE void each_tile(Function function) {
  if constexpr (BEGIN < 16) {
    constexpr int kTiles = (16 - BEGIN + kOuterScalars - 1) / kOuterScalars, kSize = (16 - BEGIN + kTiles - 1) / kTiles;
    function(BEGIN, std::make_index_sequence<kSize>());
    each_tile<BEGIN + kSize>(function);
  }
}

template <int V>
ESTREAM_INLINE void clear_vectors(F16 (&to)[V]) {
  to[0] = zero();
  if constexpr (V == 2) to[1] = zero();
}

template <int V>
ESTREAM_INLINE void load_vectors(F16 (&to)[V], const float* from) {
  to[0] = load(from);
  if constexpr (V == 2) to[1] = load(from + 16);
}

template <int V>
ESTREAM_INLINE void store_vectors(float* to, const F16 (&from)[V]) {
  store(to, from[0]);
  if constexpr (V == 2) store(to + 16, from[1]);
}

template <int V>
ESTREAM_INLINE void add_product(F16 (&sum)[V], float scalar, const F16 (&vectors)[V]) {
  const F16 a = set1(scalar);
  sum[0] = fma(a, vectors[0], sum[0]);
  if constexpr (V == 2) sum[1] = fma(a, vectors[1], sum[1]);
}

}  // namespace estream::ESTREAM_VARIANT
