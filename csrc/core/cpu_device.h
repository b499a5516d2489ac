// The operations of one layer on the CPU: each spreads kernels over the thread pool. They take plain pointers and shapes, which
// the caller checks, from one thread at a time. Rows are those of tokens; strides count floats.
//
// Scratch memory is reused. It grows when a product or a norm is wider than all before it, so the first sweep allocates and
// later ones do not. Only routing also allocates: three arrays of one float for each expert, in each task.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "core/arena.h"
#include "core/routing.h"
#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace estream {

// A float matrix [rows, columns] whose rows are stride floats apart.
struct Rows {
  float* data;
  int rows;
  int64_t stride;
};

// Activations for a product: float rows, or quantised rows where `floats` is null.
struct Activations {
  QuantizedRows quantized;
  const float* floats;
  int64_t float_stride;
};

// RMSNorm, or LayerNorm where there is a bias, of the first `columns` of a row.
struct Norm {
  const float* weight;
  const float* bias;
  int columns;
  float eps;
};

// The queries or keys of a row: heads side by side.
struct Heads {
  int heads, head_dim;
  float bound;       // values are clamped to [-bound, bound]; 0 for no bound
  const Norm* norm;  // normalises the first norm->columns values, then the next as many, and so on; null for no norm
};

// Cosines and sines [rows, dims / 2] of the angles by which the first `dims` values of each head are rotated.
struct Angles {
  const float* cosine;
  const float* sine;
  int dims;
};

// Memory for quantised rows of `columns` codes each; every `group` codes have one scale and one sum.
struct QuantizedOutput {
  int8_t* codes;
  float* scales;
  int32_t* sums;
  int columns, group;
};

// Where normalised rows are written: as floats, as codes, or nowhere, when only the router reads them. Null for what is not
// wanted. Columns after the norm's last are set to zero.
struct NormedOutput {
  float* floats = nullptr;
  int64_t float_stride = 0;
  QuantizedOutput quantized = {};
};

// A layer's router: weight [hidden, columns], where columns counts the experts and the gate of the shared expert, rounded up to
// 16.
struct Router {
  const Routing& choice;
  RouterBiases biases;
  const float* weight;
  int columns;
};

// The experts of each row: ids and weights [rows, top_k]. `gates`, if not null, gets the sigmoid of the logit that follows the
// last expert's.
struct ChosenExperts {
  int32_t* ids;
  float* weights;
  float* gates;
};

struct AttentionShape {
  int heads, kv_heads, head_dim, value_dim;
  float scale;
  int window = 0;  // keys that a query sees, its own included; 0 for all before it
};

// Heads of linear attention. Each key head serves a group of value heads. An input row holds all queries, all keys, all values.
struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim;
};

// How the products of a matrix are written.
struct ProductOptions {
  bool accumulate = false;      // add to y instead of overwriting it
  float factor = 1.0f;          // multiplies the products where they are added
  const float* bias = nullptr;  // [outputs rounded up to whole panels]
};

// Keys [kv_heads, capacity, head_dim] and values [kv_heads, capacity, value_dim rounded up to 16] of a batch. The attention
// kernel decides the element type and the layout inside each head.
struct KeyValues {
  void* keys;
  void* values;
  int64_t capacity;
};

struct RowCopies {
  const int32_t* from;
  const int32_t* to;
  int count;
};

// Where queries stand: their positions in their sequences; and for each the part of `blocks` that belongs to its sequence,
// from blocks[sequences[row]] on: the row of kv where each block of its keys begins. Sequences may share blocks.
struct QueryPlaces {
  const int32_t* positions;
  const int32_t* sequences;
  const int32_t* blocks;
};

struct ExpertWeights {
  PackedMatrix gate_up;                 // [2 * width, hidden], gate and up interleaved by 16
  PackedMatrix down;                    // [hidden, width]
  const float* gate_up_bias = nullptr;  // in the order of gate_up's outputs, padded to whole panels
  const float* down_bias = nullptr;
  // Of the clamped SwiGLU (kernels.h); 0 and 0 for silu(gate) * up.
  float alpha = 0.0f, limit = 0.0f;
};

// Room for the intermediate activations of `rows` tokens in one expert. Float activations use `hidden` alone.
struct ExpertScratch {
  float* hidden;  // [rows, down.inputs]
  int8_t* codes;
  float* scales;
  int32_t* sums;
  int rows;
};

// Where each result is added, and its factor.
struct Scatter {
  const int32_t* rows;
  const float* weights;
};

// The likeliest ids of some rows so far: [rows, wanted], likeliest first.
struct Likeliest {
  int wanted;
  int32_t* ids;
  float* values;
};

// Kinds of work whose time is kept apart.
enum class Work {
  products,
  attention,
  keys_and_values,
  linear_attention,
  norms,
  rope,
  quantizing,
  router,
  scatter,
  reductions,
  count
};

class CpuDevice {
 public:
  // exact_attention: compute attention in float32 even where a faster kernel exists.
  CpuDevice(int threads, bool exact_attention);

  const char* variant() const { return kernels_.name; }
  int threads() const { return pool_.threads(); }
  int kv_element_bytes() const { return attention_.element_bytes; }
  // Runs a loop for measuring the peak throughput on all threads at once. Returns the operations that all of them did.
  int64_t peak(int64_t (*loop)(int64_t rounds), int64_t rounds);
  const PeakLoops& peak_loops() const { return kernels_.peak; }
  // Seconds spent in each kind of work since construction.
  double seconds(Work work) const { return seconds_[static_cast<size_t>(work)]; }
  uint64_t checksum(const void* data, size_t bytes) const { return kernels_.checksum(data, bytes); }

  void norm(Rows x, const Norm& norm, const NormedOutput& to);
  // The same, and then chooses the experts of the normalised rows while they are in the cache.
  void route(Rows x, const Norm& norm, const NormedOutput& to, const Router& router, const ChosenExperts& chosen);
  // Quantises the first `columns` of each row. Codes after them are zero.
  void quantize(Rows x, int columns, const QuantizedOutput& to);
  // Normalises, clamps and rotates heads in place, in this order (rotary embedding).
  void rotate(Rows x, const Heads& heads, const Angles& angles);
  // y[row] = x[row] . w + bias, or y[row] += factor * (x[row] . w + bias).
  void matmul(const PackedMatrix& w, const Activations& x, int count, float* y, int64_t y_stride,
              const ProductOptions& options);
  // Copies the keys and values of row copies.from[i] to row copies.to[i] of kv, in the attention kernel's layout.
  void store_key_values(const AttentionShape& shape, Rows keys, Rows values, const RowCopies& copies, KeyValues kv);
  // Causal attention. Each query row has a position in its sequence. sinks: one score for each head, or null.
  void attention(const AttentionShape& shape, Rows queries, const QueryPlaces& places, KeyValues kv, const float* sinks,
                 Rows out);
  // y[to.rows[i]] += to.weights[i] * expert(x[tokens[i]]).
  void expert(const ExpertWeights& w, const Activations& x, const int32_t* tokens, const Scatter& to, int count,
              const ExpertScratch& scratch, float* y, int64_t y_stride);
  // y[to.rows[i]] += to.weights[i] * x[i]. No row may occur twice.
  void scatter_add(Rows x, const Scatter& to, Rows y);
  // y = silu(causal convolution of x). x begins conv_kernel_size - 1 rows before y. A row reads no rows before its sequence,
  // whose length so far is its position.
  void causal_conv(Rows x, const int32_t* positions, const float* weight, int conv_kernel_size, Rows y);
  // y = x * silu(gates) or x * sigmoid(gates). Columns of y after the last gate are set to zero.
  void gate(Rows x, Rows gates, bool with_silu, Rows y);
  // The gated delta rule. decays_and_rates [rows, 2 * value_heads]; state [value_heads, key_dim, value_dim].
  void delta_rule(const DeltaShape& shape, Rows mixed, Rows decays_and_rates, const int32_t* positions, float* state, Rows out);

  // Takes a slice of logits, a row each, into the rows' `totals` [rows, 2] (HeadKernels::softmax_total).
  void softmax_totals(Rows logits, double* totals);
  // Takes row rows[i] of a slice of logits, whose first column is id `first`, into the `wanted` likeliest of place i: ids and
  // values [count, wanted] (HeadKernels::likeliest).
  void likeliest(Rows logits, const int32_t* rows, int count, int first, const Likeliest& to);

 private:
  // Adds the time between its construction and its destruction to one kind of work.
  class Timed {
   public:
    Timed(CpuDevice& device, Work work)
        : seconds_(device.seconds_[static_cast<size_t>(work)]), begin_(std::chrono::steady_clock::now()) {}
    ~Timed() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    double& seconds_;
    std::chrono::steady_clock::time_point begin_;
  };

  void quantize_row(const float* row, int columns, const QuantizedOutput& to, int64_t index) const;
  // Normalises a few rows at a time and then calls then(first, rows, normed, stride, scratch) for them, on the same thread.
  // Each thread has scratch_floats floats of scratch.
  template <typename Then>
  void normalise(Rows x, const Norm& norm, const NormedOutput& to, int scratch_floats, const Then& then);
  // The products of all panels: interleaved_panels for many quantised rows, else panel by panel.
  void panels(const PackedMatrix& w, const Activations& x, const int32_t* x_rows, int count, const PanelOutput& out);
  void interleaved_panels(const PackedMatrix& w, const QuantizedRows& x, const int32_t* x_rows, int count,
                          const PanelOutput& out);
  float* thread_scratch(int thread) {
    return reinterpret_cast<float*>(scratch_.base()) + static_cast<size_t>(thread) * scratch_floats_;
  }

  const Kernels& kernels_;
  const AttentionKernels& attention_;
  ThreadPool pool_;
  std::array<double, static_cast<size_t>(Work::count)> seconds_{};
  // Arenas lie on huge pages: under a hypervisor a TLB miss costs more than a cache miss.
  size_t scratch_floats_;
  Arena scratch_;
  // Interleaved rows, and a few normalised rows for each thread. Both grow to the widest call.
  std::unique_ptr<Arena> interleaved_, normed_;
};

// Turns rows of projected rates and steps [rows, 2 * heads] into decays and rates, in place:
// decay = exp(-exp(log_rates) * softplus(step + bias)), rate = sigmoid(rate).
void delta_gates(Rows x, const float* log_rates, const float* bias);

}  // namespace estream
