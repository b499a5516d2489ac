// The operations of one layer on the CPU: kernels spread over the thread pool. Plain pointers and shapes; the binding
// checks them; one caller at a time. Rows are token rows, strides count floats. Nothing here allocates after construction.
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

// Activations for a product: quantised rows, or float rows where codes is null.
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

// Queries or keys of a row: heads side by side. Before they are rotated they may be normalised, head by head or all as one, and
// bounded where the bound is not 0.
struct Heads {
  int heads, head_dim;
  float bound;
  const Norm* norm;
};

// Angles [rows, dims / 2] by which the first `dims` values of each head are rotated.
struct Angles {
  const float* cosine;
  const float* sine;
  int dims;
};

// Where rows go as codes, `columns` of them a row, in groups.
struct QuantizedOutput {
  int8_t* codes;
  float* scales;
  int32_t* sums;
  int columns, group;
};

// What becomes of normalised rows: floats, codes, or what only the router sees; null for what is not wanted. Columns behind
// the norm's last are set to zero.
struct NormedOutput {
  float* floats = nullptr;
  int64_t float_stride = 0;
  QuantizedOutput quantized = {};
};

// A layer's router: weights [hidden, lanes].
struct Router {
  const Routing& choice;
  RouterBiases biases;
  const float* weight;
  int lanes;
};

// The experts of each row, ids and weights [rows, top_k]; where there are gates, the sigmoid of the logit behind the last
// expert.
struct ChosenExperts {
  int32_t* ids;
  float* weights;
  float* gates;
};

struct AttentionShape {
  int heads, kv_heads, head_dim, value_dim;
  float scale;
  int window = 0;  // keys that a query sees, its own among them; 0 for all before it
};

// Heads of linear attention; a key head serves a group of value heads. A row of its input is all queries, all keys, all values.
struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim;
};

// What happens to the products of a matrix.
struct ProductOptions {
  bool accumulate = false;      // added to what is there
  float factor = 1.0f;          // where they are added
  const float* bias = nullptr;  // [outputs rounded up to whole panels]
};

// Keys [kv_heads, capacity, head_dim] and values [kv_heads, capacity, value_dim rounded up to 16] of a batch, in elements
// and an order inside each head that are the attention kernels' own.
struct KeyValues {
  void* keys;
  void* values;
  int64_t capacity;
};

struct ExpertWeights {
  PackedMatrix gate_up;                 // [2 * width, hidden], gate and up interleaved by 16
  PackedMatrix down;                    // [hidden, width]
  const float* gate_up_bias = nullptr;  // in the order of gate_up's outputs, padded to whole panels
  const float* down_bias = nullptr;
  // 0, 0 for silu(gate) * up, else those of the clamped gate.
  float alpha = 0.0f, limit = 0.0f;
};

// Intermediate activations of one expert call: room for `rows` tokens, one layout for both activation types.
struct ExpertScratch {
  float* hidden;  // [rows, down.inputs]
  int8_t* codes;
  float* scales;
  int32_t* sums;
  int rows;
};

struct Scatter {
  const int32_t* rows;
  const float* weights;
};

// Kinds of work whose time is kept apart.
enum class Work { products, attention, keys_and_values, linear_attention, norms, rope, quantizing, router, scatter, count };

class CpuDevice {
 public:
  // exact_attention: in float32 also where a faster kernel is there.
  CpuDevice(int threads, bool exact_attention);

  const char* variant() const { return kernels_.name; }
  int threads() const { return pool_.threads(); }
  int kv_element_bytes() const { return attention_.element_bytes; }
  // What bare loops of multiplications do on all threads at once: the operations done.
  int64_t peak(int64_t (*loop)(int64_t rounds), int64_t rounds);
  const PeakLoops& peak_loops() const { return kernels_.peak; }
  // Seconds spent in each kind of work since construction.
  double seconds(Work work) const { return seconds_[static_cast<size_t>(work)]; }
  uint64_t checksum(const void* data, size_t bytes) const { return kernels_.checksum(data, bytes); }

  void norm(Rows x, const Norm& norm, const NormedOutput& to);
  // The same, and the experts of the normalised rows, while those are in the cache.
  void route(Rows x, const Norm& norm, const NormedOutput& to, const Router& router, const ChosenExperts& chosen);
  // The first `columns` of each row; codes behind them are zero.
  void quantize(Rows x, int columns, const QuantizedOutput& to);
  // Normalises, bounds and rotates heads in place.
  void rotate(Rows x, const Heads& heads, const Angles& angles);
  // y[row] = x[row] . w + bias, or factor times that added to y.
  void matmul(const PackedMatrix& w, const Activations& x, int count, float* y, int64_t y_stride,
              const ProductOptions& options);
  void store_key_values(const AttentionShape& shape, Rows keys, Rows values, const int32_t* destination, KeyValues kv);
  // positions and bases: of each query row, its position in its sequence and the first row of that sequence in kv.
  // sinks: one score a head, or null.
  void attention(const AttentionShape& shape, Rows queries, const int32_t* positions, const int32_t* bases, KeyValues kv,
                 const float* sinks, Rows out);
  // y[to.rows[i]] += to.weights[i] * expert(x[tokens[i]]).
  void expert(const ExpertWeights& w, const Activations& x, const int32_t* tokens, const Scatter& to, int count,
              const ExpertScratch& scratch, float* y, int64_t y_stride);
  // y[to.rows[i]] += to.weights[i] * x[i]; no row may be named twice.
  void scatter_add(Rows x, const Scatter& to, Rows y);
  // Rows of x before the first of y are those before it in the batch; a row looks back only as far as its position.
  void causal_conv(Rows x, const int32_t* positions, const float* weight, int taps, Rows y);
  // y = x * silu(gates) or x * sigmoid(gates); columns of y behind the last gate are set to zero.
  void gate(Rows x, Rows gates, bool with_silu, Rows y);
  // decays_and_rates [rows, 2 * value_heads]; state [value_heads, key_dim, value_dim].
  void delta_rule(const DeltaShape& shape, Rows mixed, Rows decays_and_rates, const int32_t* positions, float* state, Rows out);

 private:
  // Adds the time from its construction to its end to one kind of work.
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
  // Calls then(first, rows, normed, stride, scratch) for each few rows, on any thread, behind their norm. Each thread has
  // scratch_floats of scratch.
  template <typename Then>
  void normalise(Rows x, const Norm& norm, const NormedOutput& to, int scratch_floats, const Then& then);
  // The products of all panels, by rows or by tiles of 16 rows.
  void panels(const PackedMatrix& w, const Activations& x, const int32_t* x_rows, int count, const PanelOutput& out);
  void tiled_panels(const PackedMatrix& w, const QuantizedRows& x, const int32_t* x_rows, int count, const PanelOutput& out);
  float* thread_scratch(int thread) {
    return reinterpret_cast<float*>(scratch_.base()) + static_cast<size_t>(thread) * scratch_floats_;
  }

  const Kernels& kernels_;
  const AttentionKernels& attention_;
  ThreadPool pool_;
  std::array<double, static_cast<size_t>(Work::count)> seconds_{};
  // Scratch lies on huge pages: under a hypervisor a miss of the address translation costs more than one of the cache.
  size_t scratch_floats_;
  Arena scratch_;
  // Rows in tile order, and a few normalised rows of each thread; they grow to the widest once.
  std::unique_ptr<Arena> tiles_, normed_;
};

// From projected rates and steps [rows, 2 * heads] to decays and rates, in place: exp(-exp(log_rates) * softplus(step + bias))
// and sigmoid(rate).
void delta_gates(Rows x, const float* log_rates, const float* bias);

}  // namespace estream
