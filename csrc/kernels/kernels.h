// The kernels: one table of function pointers for each instruction set. A kernel works on one row, one panel or one block of
// queries. It starts no threads, allocates nothing and never fails; callers check the arguments.
#pragma once
#include <cstddef>
#include <cstdint>

// For functions in headers that several variants include. Without inlining, the linker would keep one variant's copy for all
// of them, with instructions that the processor may lack.
#define ESTREAM_INLINE __attribute__((always_inline)) inline
// For loops that need all registers to themselves.
#define ESTREAM_NOINLINE __attribute__((noinline))

namespace estream {

// Outputs of one packed panel: two SIMD vectors of sixteen floats.
constexpr int kPanel = 32;
// Keys of one packed panel, counted from a sequence's first token.
constexpr int kKeyPanel = 16;
// Keys of a sequence are read in runs of this length. So a block's keys and values begin at a multiple of it, and kernels may
// read up to the next multiple.
constexpr int kKeyRun = 32;
// Keys of a block, counted from a sequence's first token: they lie side by side, and attention updates its softmax once for
// each.
constexpr int kKeyBlock = 64;
// Rows of float activations whose sums one call of matmul_panel_float holds at a time.
constexpr int kFloatRows = 256;

// A weight matrix [outputs, inputs] in the package's layout (docs/package-format.md): panel after panel; in each panel group
// after group; in each group the codes of 32 outputs, followed by their 32 fp16 scales.
struct PackedMatrix {
  const uint8_t* data;
  int outputs;
  int inputs;  // a multiple of group; the converter pads with zeros
  int bits;    // 4 (zero point 8) or 8 (zero point 128)
  int group;   // 32, 64 or 128 inputs share a scale

  ESTREAM_INLINE int panels() const { return (outputs + kPanel - 1) / kPanel; }
  ESTREAM_INLINE int groups() const { return inputs / group; }
  ESTREAM_INLINE size_t block_bytes() const { return static_cast<size_t>(4) * bits * group + 2 * kPanel; }
  ESTREAM_INLINE size_t panel_bytes() const { return block_bytes() * groups(); }
  ESTREAM_INLINE size_t bytes() const { return panel_bytes() * panels(); }
};

// Activations [rows, columns] as signed bytes, with one scale and one sum of codes for each row and group.
struct QuantizedRows {
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  int columns;  // a multiple of the group
  int groups;
};

// The same activations in blocks of Kernels::interleaved_rows rows each, in the layout that a variant's product of many rows
// reads. The last block is padded.
struct InterleavedRows {
  int8_t* codes;          // columns, rounded up to 64, of each row
  float* scales;          // one for each row and group
  int32_t* initial_sums;  // one for each row and group; where integer accumulators begin, if the variant uses it
  int blocks;
};

enum class Write {
  store,           // y[row] = value
  add,             // y[row] += weight * value
  swiglu,          // y[row] = silu(gate) * up; a panel holds 16 outputs of gate, then the 16 matching ones of up
  clamped_swiglu,  // the same panel, gate <= limit, |up| <= limit; y[row] = gate * sigmoid(alpha * gate) * (up + 1)
};

// Where the products of one panel go.
struct PanelOutput {
  Write write;
  float* data;
  int64_t stride;
  const int32_t* rows;          // the destination of each input row, or null for the same index
  const float* weights;         // the factor of each input row (Write::add only), or null for 1
  const float* bias = nullptr;  // added to the products first: [outputs rounded up to whole panels], or null
  float factor = 1.0f;          // the factor of all rows (Write::add only)
  float alpha = 0.0f, limit = 0.0f;
};

// One block of queries of one head, and the keys and values of their sequence.
struct AttentionJob {
  const float* queries;
  int64_t query_stride;
  float* out;
  int64_t out_stride;
  int rows;                  // at most AttentionKernels::query_block
  const int32_t* positions;  // of each query within its sequence
  const void* keys;          // all rows of the head, in the layout of AttentionKernels::store
  const void* values;
  const int32_t* blocks;  // the row where each block of the sequence's keys begins, a multiple of kKeyRun
  int head_dim;
  int value_dim;
  float scale;
  int window;         // keys that a query sees, its own included; 0 for all before it
  const float* sink;  // a score that takes part in softmax and has no value, or null
  float* scratch;     // attention_scratch_floats(head_dim, value_dim)

  // The row of the sequence's key `first`, a multiple of kKeyBlock.
  ESTREAM_INLINE int64_t row_of(int first) const { return blocks[first / kKeyBlock]; }
};

// One head's key and value of one token. `keys` and `values` point to where the head's rows begin.
struct KeyValueRow {
  const float* key;
  const float* value;
  int head_dim;
  int value_dim;
  int64_t row;
  void* keys;    // head_dim elements in each row
  void* values;  // value_dim, rounded up to 16, elements in each row
};

struct AttentionKernels {
  int element_bytes;  // of keys and values; rows that were never stored must hold finite numbers
  int query_block;    // the most queries of one job
  void (*store)(const KeyValueRow& row);
  void (*attend)(const AttentionJob& job);
};
// Queries of a block; float32 divides its block into smaller tiles.
constexpr int kQueryBlock = 32, kFloatQueryBlock = 64;
// Enough for both kinds of attention.
ESTREAM_INLINE size_t attention_scratch_floats(int head_dim, int value_dim) {
  const size_t padded = (value_dim + 15) / 16 * 16;
  return kQueryBlock * (kKeyBlock + padded + head_dim + 4 + kKeyBlock / 2);
}

// One head of linear attention over the tokens of a chunk, one after another.
struct DeltaJob {
  const float* queries;  // key_dim floats in each row; rows of queries, keys and values are stride apart
  const float* keys;
  const float* values;
  int64_t stride;
  const float* decays;  // one for each row, gate_stride apart: the share of the state that is kept (alpha)
  const float* rates;   // the same for the share of the error that is corrected (beta)
  int64_t gate_stride;
  const int32_t* positions;  // at position 0 the state begins empty
  int rows;
  int key_dim;
  int value_dim;  // a multiple of 16
  float* state;   // [key_dim, value_dim]; the next chunk continues it
  float* out;
  int64_t out_stride;
  float* scratch;  // 2 * key_dim floats
};

struct LinearKernels {
  // y = silu(convolution) of the row x and the `history` rows before it. weight [conv_kernel_size, columns].
  void (*causal_conv)(const float* x, int64_t stride, int history, const float* weight, int conv_kernel_size, float* y,
                      int columns);
  void (*gate_row)(const float* x, const float* gate, bool with_silu, float* y, int columns);
  void (*delta_rule)(const DeltaJob& job);
};

struct HeadKernels {
  // Takes `count` more logits of a row into total[0], the largest so far, and total[1], the sum of exp(logit - total[0]). A row
  // begins with -infinity and 0. The sum becomes NaN where a logit is no finite number.
  void (*softmax_total)(const float* logits, int count, double* total);
  // Takes the logits of ids `first`, `first` + 1, ... into the `wanted` largest so far, largest first, equal ones by rising id.
  // Slices come by rising id; a row begins with values of -infinity.
  void (*likeliest)(const float* logits, int count, int first, int wanted, int32_t* ids, float* values);
};

// One panel whose 4-bit codes are chosen for known inputs. In every array but the two matrices, 32 outputs lie side by side.
struct CalibratedPanel {
  const float* weights;  // [inputs, 32]
  int inputs;            // a multiple of group
  int group;
  const float* moments;  // [inputs, inputs], symmetric: the second moments of the inputs (GPTQ's Hessian)
  const float*
      feedback;  // [inputs, inputs]: LDLQ's feedback; row i weighs the errors of the inputs before the i-th of the order
  const int32_t* order;  // [inputs]: the order in which the first pass chooses codes
  float* codes;          // [inputs, 32], out
  uint16_t* halves;      // [inputs / group, 32], out: the scales in fp16
  float* scales;         // [inputs / group, 32], scratch
  float* inverses;       // [inputs / group, 32], scratch
  float* errors;         // [inputs, 32], scratch
  float* scratch;        // [inputs, 32]
};

// Loops that only multiply and add, for measuring the peak throughput (peak_throughput.inl.h). Each returns the operations that
// it did. Null where a variant has no such instruction.
struct PeakLoops {
  int64_t (*int8)(int64_t rounds) = nullptr;
  int64_t (*float32)(int64_t rounds) = nullptr;
  int64_t (*bf16)(int64_t rounds) = nullptr;
  int64_t (*amx_int8)(int64_t rounds) = nullptr;
  int64_t (*amx_bf16)(int64_t rounds) = nullptr;
};

enum class WeightType { float32, float16, bfloat16 };

// One group of the 32 outputs of a panel, to be quantised.
struct PackBlock {
  const void* rows[kPanel];  // each output's weights of the group; zeros where an output is padding
  WeightType type;
  int bits;
  int group;
  uint8_t* to;  // out, in the layout of PackedMatrix: codes, then scales
  // Out, for each output. `squared` is not finite where a weight is not.
  float squared_error[kPanel];
  float squared[kPanel];
};

struct Kernels {
  const char* name;
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int columns);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, float* y, int columns);
  // Quantises one row symmetrically: for each group scale = absmax / 127, codes rounded to nearest even. Zeros from columns to
  // padded.
  void (*quantize_row)(const float* x, int columns, int padded, int group, int8_t* codes, float* scales, int32_t* sums);
  // Rotates each head's first `dims` values in pairs (i, i + dims / 2) by the angle whose cosine and sine are at i.
  void (*rope)(float* x, const float* cosine, const float* sine, int heads, int head_dim, int dims);
  // The product of one panel with `count` rows: x_rows names them, or null for the first ones. Null where min_interleaved_rows
  // is 1.
  void (*matmul_panel)(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int count,
                       const PanelOutput& out);
  // The same product with float activations [rows, stride]; scratch holds (w.group + kFloatRows) * 32 floats.
  void (*matmul_panel_float)(const PackedMatrix& w, int panel, const float* x, int64_t x_stride, const int32_t* x_rows,
                             int count, const PanelOutput& out, float* scratch);
  // logits[row, 0:columns] = x[row] . weight, where weight is [hidden, columns] and columns a multiple of 16.
  void (*router)(const float* x, int64_t x_stride, int rows, const float* weight, int hidden, int columns, float* logits);
  AttentionKernels attention_float32;
  AttentionKernels attention;  // the fastest: in bfloat16 where the processor multiplies that
  LinearKernels linear;
  HeadKernels head;
  // y += weight * x.
  void (*add)(const float* x, float weight, float* y, int columns);
  // Chooses the scales and codes of one group of a panel. A scale that overflows is infinite.
  void (*pack_block)(PackBlock& block);
  // XXH3-64.
  uint64_t (*checksum)(const void* data, size_t bytes);
  // The product of many rows, which gives the same bits as matmul_panel. interleave_rows copies the rows of one block into the
  // layout that the product with weights of `bits` reads; matmul_panel_interleaved multiplies one panel with all blocks. Its
  // scratch holds 32 floats for each row, rounded up to whole blocks. Both are null where a variant has no such product.
  int interleaved_rows;      // rows of a block
  int min_interleaved_rows;  // for fewer rows matmul_panel is faster
  void (*interleave_rows)(const QuantizedRows& x, const int32_t* x_rows, int count, int bits, int block,
                          const InterleavedRows& to);
  void (*matmul_panel_interleaved)(const PackedMatrix& w, int panel, const InterleavedRows& x, int count,
                                   const PanelOutput& out, float* scratch);
  // Chooses the scales and codes of a panel (docs/quantization.md).
  void (*calibrate_panel)(const CalibratedPanel& panel);
  PeakLoops peak;
};

// The variant that ESTREAM_KERNELS names, else the fastest one for this processor. Throws std::runtime_error where the named
// variant is unknown or cannot run here.
const Kernels& select_kernels();
// The fastest variant for this processor, whatever ESTREAM_KERNELS says. For what all variants compute alike.
const Kernels& fastest_kernels();
// Null where this build or this processor lacks the variant.
const Kernels* find_kernels(const char* name);
// The names of the variants that can run here, fastest first. A null pointer ends the list.
const char* const* available_kernels();

}  // namespace estream
