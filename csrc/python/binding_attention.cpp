// Attention of the CPU device, and its keys and values.
#include "python/binding_rows.h"

namespace estream::binding {

namespace {

struct Attention {
  AttentionShape shape;

  Attention(int heads, int kv_heads, int head_dim, int value_dim, float scale, int window)
      : shape{heads, kv_heads, head_dim, value_dim, scale, window} {
    require(window >= 0, "window must not be negative");
    require(kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
    require(head_dim > 0 && head_dim % 2 == 0 && head_dim <= 256, "head_dim must be even and lie in 2..256");
    require(value_dim > 0 && value_dim <= 256, "value_dim must lie in 1..256");
  }
  int64_t value_stride() const { return (shape.value_dim + 15) / 16 * 16; }
  KeyValues key_values(const Bytes& keys, const Bytes& values, int64_t capacity, int element_bytes) const {
    require(capacity % kKeyRun == 0, "capacity must be a multiple of 32");
    const int64_t rows = shape.kv_heads * capacity * element_bytes;
    require(static_cast<int64_t>(keys.size()) >= rows * shape.head_dim &&
                static_cast<int64_t>(values.size()) >= rows * value_stride(),
            "keys and values do not fit the capacity");
    return {keys.data(), values.data(), capacity};
  }
};

// QueryPlaces in arrays, and the checks of them.
struct QueryArrays {
  Array<int32_t, 1> positions, sequences, blocks;

  QueryArrays(Array<int32_t, 1> positions, Array<int32_t, 1> sequences, Array<int32_t, 1> blocks)
      : positions(positions), sequences(sequences), blocks(blocks) {
    for (size_t i = 0; i < blocks.shape(0); i++)
      require(blocks.data()[i] >= 0 && blocks.data()[i] % kKeyRun == 0, "blocks must be multiples of KEY_RUN");
  }
  QueryPlaces checked(size_t rows, int64_t capacity) const {
    const int64_t count = static_cast<int64_t>(blocks.shape(0));
    check_rows(positions, rows, count * kKeyBlock, "a position is out of range");
    check_rows(sequences, rows, count, "a sequence is out of range");
    for (size_t i = 0; i < rows;) {
      const int32_t sequence = sequences.data()[i];
      int64_t last = 0;
      for (; i < rows && sequences.data()[i] == sequence; i++) last = std::max<int64_t>(last, positions.data()[i]);
      require(sequence + last / kKeyBlock < count, "a query's keys are out of range");
      for (int64_t key = 0; key <= last; key += kKeyBlock)
        require(blocks.data()[sequence + key / kKeyBlock] + std::min<int64_t>(last - key, kKeyBlock - 1) < capacity,
                "a query's keys are out of range");
    }
    return {positions.data(), sequences.data(), blocks.data()};
  }
};

}  // namespace

void bind_attention(nb::module_& m, nb::class_<CpuDevice>& device) {
  m.attr("KEY_RUN") = kKeyRun;
  m.attr("KEY_BLOCK") = kKeyBlock;
  nb::class_<Attention>(m, "Attention", "The shape of a layer's attention.")
      .def(nb::init<int, int, int, int, float, int>(), "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "scale"_a,
           "window"_a = 0,
           R"(``heads`` is a multiple of ``kv_heads``, ``head_dim`` even and at most 256, ``value_dim`` at most 256.
``scale`` multiplies scores. A query sees ``window`` keys, its own included; 0 for all before it.)");
  nb::class_<QueryArrays>(m, "QueryPlaces", "Where the keys of some queries lie. Sequences that begin alike may share blocks.")
      .def(nb::init<Array<int32_t, 1>, Array<int32_t, 1>, Array<int32_t, 1>>(), "positions"_a.noconvert(),
           "sequences"_a.noconvert(), "blocks"_a.noconvert(),
           R"(positions: [rows], each query's position in its sequence.
sequences: [rows], where in ``blocks`` the part of the query's sequence begins.
blocks: for every KEY_BLOCK keys of each sequence the row of keys and values where they begin, a multiple of
KEY_RUN.)");
  device
      .def(
          "store_key_values",
          [](CpuDevice& d, const Attention& a, const Floats& keys, const Floats& values, const Array<int32_t, 1>& from,
             const Array<int32_t, 1>& to, const Bytes& all_keys, const Bytes& all_values, int64_t capacity) {
            require(keys.shape(0) == values.shape(0) &&
                        static_cast<int>(keys.shape(1)) >= a.shape.kv_heads * a.shape.head_dim &&
                        static_cast<int>(values.shape(1)) >= a.shape.kv_heads * a.shape.value_dim,
                    "keys and values do not fit the heads");
            check_rows(from, from.shape(0), static_cast<int64_t>(keys.shape(0)), "a row to be stored is out of range");
            check_rows(to, from.shape(0), capacity, "a key's row is out of range");
            d.store_key_values(a.shape, rows(keys), rows(values), {from.data(), to.data(), static_cast<int>(from.shape(0))},
                               a.key_values(all_keys, all_values, capacity, d.kv_element_bytes()));
          },
          "attention"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "rows"_a.noconvert(), "to"_a.noconvert(),
          "all_keys"_a.noconvert(), "all_values"_a.noconvert(), "capacity"_a, ReleaseGil(),
          R"(Copy the rows ``rows`` [m] of ``keys`` [n, at least kv_heads * head_dim] and ``values`` [n, at least kv_heads *
value_dim] to the rows ``to`` [m] of those of the batch; no row twice.

all_keys: at least kv_heads * capacity * head_dim elements of ``kv_element_bytes``, in the kernel's layout.
all_values: the same, with value_dim rounded up to 16.
capacity: the rows that each head has room for, a multiple of KEY_RUN.)")
      .def(
          "attention",
          [](CpuDevice& d, const Attention& a, const Floats& queries, const QueryArrays& places, const Bytes& keys,
             const Bytes& values, int64_t capacity, const Floats& out, uintptr_t sinks) {
            require(static_cast<int>(queries.shape(1)) >= a.shape.heads * a.shape.head_dim &&
                        static_cast<int>(out.shape(1)) >= a.shape.heads * a.shape.value_dim && out.shape(0) == queries.shape(0),
                    "queries do not fit the heads");
            d.attention(a.shape, rows(queries), places.checked(queries.shape(0), capacity),
                        a.key_values(keys, values, capacity, d.kv_element_bytes()), floats_at(sinks), rows(out));
          },
          "attention"_a, "queries"_a.noconvert(), "places"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "capacity"_a,
          "out"_a.noconvert(), "sinks"_a = 0, ReleaseGil(),
          R"(Causal attention of ``queries`` [rows, at least heads * head_dim] to ``out`` [rows, at least
heads * value_dim], whose further columns become zero.

places: where the queries stand, as many as there are rows.
keys, values, capacity: those of ``store_key_values``. Kernels read up to the next multiple of KEY_RUN rows of
a sequence, so rows that were never stored must hold finite numbers.
sinks: the address of one float32 score for each head, which takes part in softmax without a value; or 0.)");
}

}  // namespace estream::binding
