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

}  // namespace

void bind_attention(nb::module_& m, nb::class_<CpuDevice>& device) {
  m.attr("KEY_RUN") = kKeyRun;
  nb::class_<Attention>(m, "Attention", "The shape of a layer's attention.")
      .def(nb::init<int, int, int, int, float, int>(), "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "scale"_a,
           "window"_a = 0,
           R"(``heads`` is a multiple of ``kv_heads``, ``head_dim`` even and at most 256, ``value_dim`` at most 256.
``scale`` multiplies scores. A query sees ``window`` keys, its own included; 0 for all before it.)");
  device
      .def(
          "store_key_values",
          [](CpuDevice& d, const Attention& a, const Floats& keys, const Floats& values, const Array<int32_t, 1>& to,
             const Bytes& all_keys, const Bytes& all_values, int64_t capacity) {
            require(keys.shape(0) == values.shape(0) &&
                        static_cast<int>(keys.shape(1)) >= a.shape.kv_heads * a.shape.head_dim &&
                        static_cast<int>(values.shape(1)) >= a.shape.kv_heads * a.shape.value_dim,
                    "keys and values do not fit the heads");
            check_rows(to, keys.shape(0), capacity, "a key's row is out of range");
            d.store_key_values(a.shape, rows(keys), rows(values), to.data(),
                               a.key_values(all_keys, all_values, capacity, d.kv_element_bytes()));
          },
          "attention"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "rows"_a.noconvert(), "all_keys"_a.noconvert(),
          "all_values"_a.noconvert(), "capacity"_a, ReleaseGil(),
          R"(Copy ``keys`` [n, at least kv_heads * head_dim] and ``values`` [n, at least kv_heads * value_dim] to the rows
``rows`` [n] of those of the batch.

all_keys: at least kv_heads * capacity * head_dim elements of ``kv_element_bytes``, in the kernel's layout.
all_values: the same, with value_dim rounded up to 16.
capacity: the rows that each head has room for, a multiple of KEY_RUN.)")
      .def(
          "attention",
          [](CpuDevice& d, const Attention& a, const Floats& queries, const Array<int32_t, 1>& positions,
             const Array<int32_t, 1>& bases, const Bytes& keys, const Bytes& values, int64_t capacity, const Floats& out,
             uintptr_t sinks) {
            require(static_cast<int>(queries.shape(1)) >= a.shape.heads * a.shape.head_dim &&
                        static_cast<int>(out.shape(1)) >= a.shape.heads * a.shape.value_dim && out.shape(0) == queries.shape(0),
                    "queries do not fit the heads");
            check_rows(positions, queries.shape(0), capacity, "a position is out of range");
            check_rows(bases, queries.shape(0), capacity, "a base is out of range");
            for (size_t i = 0; i < queries.shape(0); i++)
              require(bases.data()[i] % kKeyRun == 0 && bases.data()[i] + positions.data()[i] < capacity,
                      "a query's keys are out of range");
            d.attention(a.shape, rows(queries), positions.data(), bases.data(),
                        a.key_values(keys, values, capacity, d.kv_element_bytes()), floats_at(sinks), rows(out));
          },
          "attention"_a, "queries"_a.noconvert(), "positions"_a.noconvert(), "bases"_a.noconvert(), "keys"_a.noconvert(),
          "values"_a.noconvert(), "capacity"_a, "out"_a.noconvert(), "sinks"_a = 0, ReleaseGil(),
          R"(Causal attention of ``queries`` [rows, at least heads * head_dim] to ``out`` [rows, at least
heads * value_dim], whose further columns become zero.

positions: [rows], each query's position in its sequence.
bases: [rows], the row of keys and values where its sequence begins, a multiple of KEY_RUN.
keys, values, capacity: those of ``store_key_values``. Kernels read up to the next multiple of KEY_RUN rows of
a sequence, so rows that were never stored must hold finite numbers.
sinks: the address of one float32 score for each head, which takes part in softmax without a value; or 0.)");
}

}  // namespace estream::binding
