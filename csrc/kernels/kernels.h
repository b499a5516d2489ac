// The kernel family: one table of function pointers, filled once per instruction set. Kernels work on one row, one
// panel or one block of queries; they start no threads, allocate nothing and never fail. Arguments are checked above.
#pragma once
#include <cstddef>
#include <cstdint>

// Shared by files that are compiled for different instruction sets: only inlining keeps the linker from giving all of
// them the copy of one.
#define ESTREAM_INLINE __attribute__((always_inline)) inline
// For loops that need all registers.
#define ESTREAM_NOINLINE __attribute__((noinline))

namespace estream {

// Outputs of one packed panel: two vectors of sixteen lanes.
constexpr int kPanel = 32;
// Keys of one packed block, counted from a sequence's first token.
constexpr int kKeyBlock = 16;
// Keys that are read together: a sequence's keys and values begin at a multiple of this and may be read up to one.
constexpr int kKeyRun = 32;
// Rows of float activations that one call of matmul_panel_float may have in flight.
constexpr int kFloatRows = 256;

// A weight matrix [outputs, inputs] in the package's layout (docs/package-format.md): panel after panel, in each panel
// group after group, in each group the codes of 32 outputs followed by their 32 fp16 scales.
struct PackedMatrix {
  const uint8_t* data;
  int outputs;
  int inputs;  // a multiple of group; the converter pads with zeros
  int bits;    // 4 (stored +8) or 8 (stored +128)
  int group;   // 32, 64 or 128 inputs share a scale

  ESTREAM_INLINE int panels() const { return (outputs + kPanel - 1) / kPanel; }
  ESTREAM_INLINE int groups() const { return inputs / group; }
  ESTREAM_INLINE size_t block_bytes() const { return static_cast<size_t>(4) * bits * group + 2 * kPanel; }
  ESTREAM_INLINE size_t panel_bytes() const { return block_bytes() * groups(); }
  ESTREAM_INLINE size_t bytes() const { return panel_bytes() * panels(); }
};

// Activations [rows, columns] as signed bytes with one scale and one code sum per row and group.
struct QuantizedRows {
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  int columns;  // a multiple of the group
  int groups;
};

// The same in the order in which a variant reads many rows together: blocks of Kernels::tiled_rows rows, padded.
struct TiledRows {
  int8_t* codes;    // columns rounded up to 64 for each row
  float* scales;    // groups of each row
  int32_t* starts;  // the same; what integer sums begin with, where the variant wants it
  int blocks;
};

enum class Write {
  store,           // y[row] = value
  add,             // y[row] += weight * value
  swiglu,          // y[row] = silu(gate) * up; a panel holds 16 gate outputs, then the 16 matching up outputs
  clamped_swiglu,  // the same panel: gate at most limit, up within +-limit; y[row] = gate * sigmoid(alpha * gate) * (up + 1)
};

// Where the products of one panel go.
struct PanelOutput {
  Write write;
  float* data;
  int64_t stride;
  const int32_t* rows;          // destination of each input row, or null for the same index
  const float* weights;         // factor of each input row (Write::add only), or null for 1
  const float* bias = nullptr;  // added to the products first: [outputs rounded up to whole panels], or null
  float factor = 1.0f;          // of all rows (Write::add only)
  float alpha = 0.0f, limit = 0.0f;
};

// One block of queries of one head against the keys and values of one sequence.
struct AttentionJob {
  const float* queries;
  int64_t query_stride;
  float* out;
  int64_t out_stride;
  int rows;                  // at most AttentionKernels::query_block
  const int32_t* positions;  // of each query within its sequence
  const void* keys;          // of the sequence, as AttentionKernels::store lays them
  const void* values;
  int head_dim;
  int value_dim;
  float scale;
  int window;         // keys that a query sees, its own among them; 0 for all before it
  const float* sink;  // a score that takes its share of the weights and has no value, or null
  float* scratch;     // attention_scratch_floats(head_dim, value_dim)
};

// One head's key and value of one token; keys and values are where the head's rows begin.
struct KeyValueRow {
  const float* key;
  const float* value;
  int head_dim;
  int value_dim;
  int64_t row;
  void* keys;    // head_dim elements a row
  void* values;  // value_dim rounded up to 16 elements a row
};

struct AttentionKernels {
  int element_bytes;  // of keys and values; those of rows that were never stored must be finite
  int query_block;    // queries of one job
  void (*store)(const KeyValueRow& row);
  void (*attend)(const AttentionJob& job);
};
constexpr int kQueryBlock = 32, kFloatQueryBlock = 64;  // float32 walks over its block in smaller parts
constexpr int kKeysAtOnce = 64;
// Enough for both kinds.
ESTREAM_INLINE size_t attention_scratch_floats(int head_dim, int value_dim) {
  const size_t padded = (value_dim + 15) / 16 * 16;
  return kQueryBlock * (kKeysAtOnce + padded + head_dim + 4 + kKeysAtOnce / 2);
}

// One head of linear attention over the tokens of a chunk, in order.
struct DeltaJob {
  const float* queries;  // key_dim of each row; rows are stride apart, for keys and values too
  const float* keys;
  const float* values;
  int64_t stride;
  const float* decays;  // one of each row, gate_stride apart: what the state keeps, and how much of an error is corrected
  const float* rates;
  int64_t gate_stride;
  const int32_t* positions;  // where it is 0 the state begins empty
  int rows;
  int key_dim;
  int value_dim;  // a multiple of 16
  float* state;   // [key_dim, value_dim], kept from chunk to chunk
  float* out;
  int64_t out_stride;
  float* scratch;  // 2 * key_dim floats
};

struct LinearKernels {
  // x is one row; `history` rows before it count. weight [taps, columns], then silu.
  void (*causal_conv)(const float* x, int64_t stride, int history, const float* weight, int taps, float* y, int columns);
  void (*gate_row)(const float* x, const float* gate, bool with_silu, float* y, int columns);
  void (*delta_rule)(const DeltaJob& job);
};

// One panel whose 4-bit codes are chosen for known inputs; in every array but the matrices, 32 outputs lie side by side.
struct CalibratedPanel {
  const float* weights;  // [inputs, 32]
  int inputs;            // a multiple of group
  int group;
  const float* moments;   // [inputs, inputs], symmetric: how the errors of two inputs count together
  const float* feedback;  // [inputs, inputs]: what the input at one place of the order makes up for of those before it
  const int32_t* order;   // [inputs]: in which the codes are chosen first
  float* codes;           // [inputs, 32], out
  uint16_t* halves;       // [inputs / group, 32], out: the scales in fp16
  float* scales;          // [inputs / group, 32], scratch
  float* inverses;        // [inputs / group, 32], scratch
  float* errors;          // [inputs, 32], scratch
  float* scratch;         // [inputs, 32]
};

// Loops that do nothing but multiply and add, for measuring (peak.inl.h); null where a variant has no such instruction.
struct PeakLoops {
  int64_t (*bytes)(int64_t rounds) = nullptr;
  int64_t (*floats)(int64_t rounds) = nullptr;
  int64_t (*bfloats)(int64_t rounds) = nullptr;
  int64_t (*byte_tiles)(int64_t rounds) = nullptr;
  int64_t (*bfloat_tiles)(int64_t rounds) = nullptr;
};

enum class WeightType { float32, float16, bfloat16 };

// One group of the 32 outputs of a panel, which is to be quantised.
struct PackBlock {
  const void* rows[kPanel];  // where each output's first weight of the group is; zeros where an output is padding
  WeightType type;
  int bits;
  int group;
  uint8_t* to;  // as PackedMatrix lays it: codes, then scales
  // Of each output, out. `squared` is not finite where a weight is not.
  float squared_error[kPanel];
  float squared[kPanel];
};

struct Kernels {
  const char* name;
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int columns);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, float* y, int columns);
  // Quantises one row: per group scale = max|x| / 127, codes rounded to nearest even, zeros from columns to padded.
  void (*quantize_row)(const float* x, int columns, int padded, int group, int8_t* codes, float* scales, int32_t* sums);
  // Rotates the two halves of each head's first `dims` values by the angles whose cosine and sine are given for dims / 2 pairs.
  void (*rope)(float* x, const float* cosine, const float* sine, int heads, int head_dim, int dims);
  // Null where fewest_tiled_rows is 1.
  void (*matmul_panel)(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int count,
                       const PanelOutput& out);
  // The same product with float activations [rows, stride]; scratch holds (w.group + kFloatRows) * 32 floats.
  void (*matmul_panel_float)(const PackedMatrix& w, int panel, const float* x, int64_t x_stride, const int32_t* x_rows,
                             int count, const PanelOutput& out, float* scratch);
  // logits[row, 0:lanes] = x[row] . weight, weight transposed to [hidden, lanes], lanes a multiple of 16.
  void (*router)(const float* x, int64_t x_stride, int rows, const float* weight, int hidden, int lanes, float* logits);
  AttentionKernels attention_float32;
  AttentionKernels attention;  // the fast one: in bfloat16 where the processor has it
  LinearKernels linear;
  void (*add)(const float* x, float weight, float* y, int columns);
  // Chooses the scales and codes of one group of a panel; a scale that overflows is infinite.
  void (*pack_block)(PackBlock& block);
  uint64_t (*checksum)(const void* data, size_t bytes);
  // For many rows at once; null in the portable variant. Brings one block of tiled_rows of the rows into the order that the
  // product with weights of `bits` wants; then the same product for all of them, with the same bits. scratch holds 32
  // floats for each row, rounded up to whole blocks.
  int tiled_rows;
  int fewest_tiled_rows;  // for fewer the product by rows is faster
  void (*tile_rows)(const QuantizedRows& x, const int32_t* x_rows, int count, int bits, int block, const TiledRows& to);
  void (*matmul_panel_tiled)(const PackedMatrix& w, int panel, const TiledRows& x, int count, const PanelOutput& out,
                             float* scratch);
  // Chooses the scales and codes of a panel (docs/quantization.md).
  void (*calibrate_panel)(const CalibratedPanel& panel);
  PeakLoops peak;
};

// The variant for this processor, or the one that ESTREAM_KERNELS names; throws std::runtime_error where that one is
// unknown or cannot run here.
const Kernels& select_kernels();
// The best variant for this processor, whatever ESTREAM_KERNELS says; for what all variants compute alike.
const Kernels& fastest_kernels();
// Null where this build or this processor lacks the variant.
const Kernels* find_kernels(const char* name);
// Names of the variants that can run here, best first; ends with null.
const char* const* available_kernels();

}  // namespace estream
