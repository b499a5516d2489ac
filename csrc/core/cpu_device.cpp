#include "core/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace estream {

namespace {

constexpr int kMaxHeadDim = 256, kMaxValueDim = 256;
constexpr int kMaxGroup = 128;
// Rows that one task multiplies with one panel: their codes stay in the L2 cache from panel to panel.
constexpr int kRowBlock = 256;
// The same with the padding of the last block, in any variant.
constexpr int kMaxInterleavedRows = kRowBlock + 16;
// Rows of a task where a row is little work.
constexpr int kSmallRows = 16;

int blocks(int count, int block) { return (count + block - 1) / block; }

}  // namespace

CpuDevice::CpuDevice(int threads, bool exact_attention)
    : kernels_(select_kernels()),
      attention_(exact_attention ? kernels_.attention_float32 : kernels_.attention),
      pool_(threads),
      scratch_floats_(std::max<size_t>(attention_scratch_floats(kMaxHeadDim, kMaxValueDim),
                                       static_cast<size_t>(kMaxGroup + kFloatRows) * kPanel)),
      scratch_(scratch_floats_ * threads * sizeof(float)) {}

int64_t CpuDevice::peak(int64_t (*loop)(int64_t rounds), int64_t rounds) {
  std::atomic<int64_t> done = 0;
  pool_.run(pool_.threads(), [&](int, int) { done += loop(rounds); });
  return done;
}

template <typename Then>
void CpuDevice::normalise(Rows x, const Norm& norm, const NormedOutput& to, int scratch_floats, const Then& then) {
  const int64_t stride = to.floats ? to.float_stride : blocks(norm.columns, 16) * int64_t{16};
  const int64_t own = kSmallRows * stride + scratch_floats;
  const size_t bytes = own * threads() * sizeof(float);
  if (!normed_ || normed_->bytes() < bytes) normed_ = std::make_unique<Arena>(bytes);
  pool_.run(blocks(x.rows, kSmallRows), [&](int task, int thread) {
    const int first = task * kSmallRows, rows = std::min(kSmallRows, x.rows - first);
    float* scratch = reinterpret_cast<float*>(normed_->base()) + thread * own;
    float* normed = to.floats ? to.floats + first * stride : scratch + scratch_floats;
    for (int64_t r = 0; r < rows; r++) {
      const float* from = x.data + (first + r) * x.stride;
      float* row = normed + r * stride;
      if (norm.bias)
        kernels_.layer_norm(from, norm.weight, norm.bias, norm.eps, row, norm.columns);
      else
        kernels_.rms_norm(from, norm.weight, norm.eps, row, norm.columns);
      std::fill(row + norm.columns, row + stride, 0.0f);
      if (to.quantized.codes) quantize_row(row, norm.columns, to.quantized, first + r);
    }
    then(first, rows, normed, stride, scratch);
  });
}

void CpuDevice::norm(Rows x, const Norm& norm, const NormedOutput& to) {
  const Timed timed(*this, Work::norms);
  normalise(x, norm, to, 0, [](int, int, const float*, int64_t, float*) {});
}

void CpuDevice::route(Rows x, const Norm& norm, const NormedOutput& to, const Router& router, const ChosenExperts& chosen) {
  const Timed timed(*this, Work::router);
  const Routing& choice = router.choice;
  normalise(x, norm, to, kSmallRows * router.columns,
            [&](int first, int rows, const float* normed, int64_t stride, float* logits) {
              kernels_.router(normed, stride, rows, router.weight, norm.columns, router.columns, logits);
              const int64_t at = int64_t{first} * choice.top_k;
              estream::route(choice, router.biases, logits, rows, router.columns, chosen.ids + at, chosen.weights + at);
              if (chosen.gates) sigmoid_gates(logits, rows, router.columns, choice.experts, chosen.gates + first);
            });
}

void CpuDevice::quantize_row(const float* row, int columns, const QuantizedOutput& to, int64_t index) const {
  const int64_t groups = to.columns / to.group;
  kernels_.quantize_row(row, columns, to.columns, to.group, to.codes + index * to.columns, to.scales + index * groups,
                        to.sums + index * groups);
}

void CpuDevice::quantize(Rows x, int columns, const QuantizedOutput& to) {
  const Timed timed(*this, Work::quantizing);
  pool_.run(blocks(x.rows, kSmallRows), [&](int task, int) {
    const int end = std::min(x.rows, (task + 1) * kSmallRows);
    for (int64_t r = task * kSmallRows; r < end; r++) quantize_row(x.data + r * x.stride, columns, to, r);
  });
}

void CpuDevice::rotate(Rows x, const Heads& heads, const Angles& angles) {
  const Timed timed(*this, Work::rope);
  const int64_t half = angles.dims / 2;
  const int width = heads.heads * heads.head_dim;
  pool_.run(blocks(x.rows, kSmallRows), [&](int task, int) {
    const int end = std::min(x.rows, (task + 1) * kSmallRows);
    for (int64_t r = task * kSmallRows; r < end; r++) {
      float* row = x.data + r * x.stride;
      if (const Norm* norm = heads.norm)
        for (int at = 0; at < width; at += norm->columns)
          kernels_.rms_norm(row + at, norm->weight, norm->eps, row + at, norm->columns);
      if (heads.bound > 0.0f)
        for (int i = 0; i < width; i++) row[i] = std::clamp(row[i], -heads.bound, heads.bound);
      kernels_.rope(row, angles.cosine + r * half, angles.sine + r * half, heads.heads, heads.head_dim, angles.dims);
    }
  });
}

namespace {

// The part of an output that belongs to rows from `first` on.
PanelOutput rows_from(PanelOutput out, int first) {
  if (out.rows)
    out.rows += first;
  else
    out.data += first * out.stride;
  if (out.weights) out.weights += first;
  return out;
}

QuantizedRows rows_from(QuantizedRows x, int64_t first) {
  x.codes += first * x.columns;
  x.scales += first * x.groups;
  x.sums += first * x.groups;
  return x;
}

}  // namespace

void CpuDevice::interleaved_panels(const PackedMatrix& w, const QuantizedRows& x, const int32_t* x_rows, int count,
                                   const PanelOutput& out) {
  static_assert(sizeof(float) == sizeof(int32_t));
  const size_t code_bytes = static_cast<size_t>(kMaxInterleavedRows) * blocks(x.columns, 64) * 64;
  const size_t scale_bytes = kMaxInterleavedRows * x.groups * sizeof(float), bytes = code_bytes + 2 * scale_bytes;
  if (!interleaved_ || interleaved_->bytes() < bytes) interleaved_ = std::make_unique<Arena>(bytes);
  // The parts are equal: a part of few rows would unpack weights for little use.
  const int most = blocks(count, blocks(count, kRowBlock));
  for (int first = 0; first < count; first += most) {
    const int rows = std::min(most, count - first);
    const QuantizedRows part = x_rows ? x : rows_from(x, first);
    const int32_t* part_rows = x_rows ? x_rows + first : nullptr;
    uint8_t* base = interleaved_->base();
    const InterleavedRows interleaved = {reinterpret_cast<int8_t*>(base), reinterpret_cast<float*>(base + code_bytes),
                                         reinterpret_cast<int32_t*>(base + code_bytes + scale_bytes),
                                         blocks(rows, kernels_.interleaved_rows)};
    pool_.run(interleaved.blocks,
              [&](int block, int) { kernels_.interleave_rows(part, part_rows, rows, w.bits, block, interleaved); });
    const PanelOutput part_out = rows_from(out, first);
    pool_.run(w.panels(), [&](int panel, int thread) {
      kernels_.matmul_panel_interleaved(w, panel, interleaved, rows, part_out, thread_scratch(thread));
    });
  }
}

void CpuDevice::panels(const PackedMatrix& w, const Activations& x, const int32_t* x_rows, int count, const PanelOutput& out) {
  const Timed timed(*this, Work::products);
  if (!x.floats && kernels_.matmul_panel_interleaved && count >= kernels_.min_interleaved_rows)
    return interleaved_panels(w, x.quantized, x_rows, count, out);
  const int panels = w.panels();
  pool_.run(panels * blocks(count, kRowBlock), [&](int task, int thread) {
    const int panel = task % panels, first = task / panels * kRowBlock;
    const int rows = std::min(kRowBlock, count - first);
    const PanelOutput part = rows_from(out, first);
    const int32_t* part_rows = x_rows ? x_rows + first : nullptr;
    if (x.floats) {
      const float* floats = x_rows ? x.floats : x.floats + first * x.float_stride;
      kernels_.matmul_panel_float(w, panel, floats, x.float_stride, part_rows, rows, part, thread_scratch(thread));
      return;
    }
    const QuantizedRows q = x_rows ? x.quantized : rows_from(x.quantized, first);
    kernels_.matmul_panel(w, panel, q, part_rows, rows, part);
  });
}

void CpuDevice::matmul(const PackedMatrix& w, const Activations& x, int count, float* y, int64_t y_stride,
                       const ProductOptions& options) {
  const Write write = options.accumulate ? Write::add : Write::store;
  panels(w, x, nullptr, count, {write, y, y_stride, nullptr, nullptr, options.bias, options.factor});
}

namespace {

// Where a row of one head begins. `row` is a multiple of kKeyRun, so the layout inside a run does not matter.
uint8_t* head_rows(void* base, int64_t row, int64_t elements, int element_bytes) {
  return static_cast<uint8_t*>(base) + row * elements * element_bytes;
}

}  // namespace

void CpuDevice::store_key_values(const AttentionShape& shape, Rows keys, Rows values, const RowCopies& copies, KeyValues kv) {
  const Timed timed(*this, Work::keys_and_values);
  const int64_t value_stride = (shape.value_dim + 15) / 16 * 16;
  const int bytes = attention_.element_bytes;
  // Neighbouring rows of a head share cache lines, so one task stores whole panels of them, head by head.
  pool_.run(blocks(copies.count, 2 * kKeyPanel), [&](int task, int) {
    const int end = std::min(copies.count, (task + 1) * 2 * kKeyPanel);
    for (int h = 0; h < shape.kv_heads; h++)
      for (int i = task * 2 * kKeyPanel; i < end; i++) {
        const int64_t base = h * kv.capacity, r = copies.from[i];
        attention_.store({keys.data + r * keys.stride + static_cast<int64_t>(h) * shape.head_dim,
                          values.data + r * values.stride + static_cast<int64_t>(h) * shape.value_dim, shape.head_dim,
                          shape.value_dim, copies.to[i], head_rows(kv.keys, base, shape.head_dim, bytes),
                          head_rows(kv.values, base, value_stride, bytes)});
      }
  });
}

void CpuDevice::attention(const AttentionShape& shape, Rows queries, const QueryPlaces& places, KeyValues kv,
                          const float* sinks, Rows out) {
  const Timed timed(*this, Work::attention);
  const int64_t value_stride = (shape.value_dim + 15) / 16 * 16;
  const int width = shape.heads * shape.value_dim, bytes = attention_.element_bytes;
  // Tasks go head by head, so that a head's keys and values stay in the cache. Later queries see more keys, so the last and
  // longest blocks begin first.
  const int query_block = attention_.query_block, query_blocks = blocks(queries.rows, query_block);
  pool_.run(query_blocks * shape.heads, [&](int task, int thread) {
    const int block = query_blocks - 1 - task % query_blocks, head = task / query_blocks;
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const int end = std::min(queries.rows, (block + 1) * query_block);
    // A block may hold queries of several sequences. Neighbours of the same sequence form one job.
    for (int first = block * query_block; first < end;) {
      int end_of_job = first + 1;
      while (end_of_job < end && places.sequences[end_of_job] == places.sequences[first]) end_of_job++;
      const int64_t base = kv_head * kv.capacity;
      attention_.attend({queries.data + first * queries.stride + static_cast<int64_t>(head) * shape.head_dim, queries.stride,
                         out.data + first * out.stride + static_cast<int64_t>(head) * shape.value_dim, out.stride,
                         end_of_job - first, places.positions + first, head_rows(kv.keys, base, shape.head_dim, bytes),
                         head_rows(kv.values, base, value_stride, bytes), places.blocks + places.sequences[first],
                         shape.head_dim, shape.value_dim, shape.scale, shape.window, sinks ? sinks + head : nullptr,
                         thread_scratch(thread)});
      first = end_of_job;
    }
    if (head == 0)
      for (int r = block * query_block; r < end; r++)
        std::fill(out.data + r * out.stride + width, out.data + (r + 1) * out.stride, 0.0f);
  });
}

void CpuDevice::expert(const ExpertWeights& w, const Activations& x, const int32_t* tokens, const Scatter& to, int count,
                       const ExpertScratch& scratch, float* y, int64_t y_stride) {
  const int width = w.gate_up.outputs / 2, padded = w.down.inputs, groups = w.down.groups();
  const Write gate = w.limit > 0.0f ? Write::clamped_swiglu : Write::swiglu;
  for (int first = 0; first < count; first += scratch.rows) {
    const int rows = std::min(scratch.rows, count - first);
    if (width < padded)
      for (int r = 0; r < rows; r++)
        std::fill(scratch.hidden + int64_t{r} * padded + width, scratch.hidden + int64_t{r + 1} * padded, 0.0f);
    panels(w.gate_up, x, tokens + first, rows,
           {gate, scratch.hidden, padded, nullptr, nullptr, w.gate_up_bias, 1.0f, w.alpha, w.limit});
    Activations hidden = {{nullptr, nullptr, nullptr, padded, groups}, scratch.hidden, padded};
    if (!x.floats) {
      quantize({scratch.hidden, rows, padded}, width, {scratch.codes, scratch.scales, scratch.sums, padded, w.down.group});
      hidden = {{scratch.codes, scratch.scales, scratch.sums, padded, groups}, nullptr, 0};
    }
    panels(w.down, hidden, nullptr, rows, {Write::add, y, y_stride, to.rows + first, to.weights + first, w.down_bias});
  }
}

void CpuDevice::softmax_totals(Rows logits, double* totals) {
  const Timed timed(*this, Work::reductions);
  pool_.run(logits.rows, [&](int row, int) {
    kernels_.head.softmax_total(logits.data + row * logits.stride, static_cast<int>(logits.stride), totals + 2 * int64_t{row});
  });
}

void CpuDevice::likeliest(Rows logits, const int32_t* rows, int count, int first, const Likeliest& to) {
  const Timed timed(*this, Work::reductions);
  pool_.run(count, [&](int i, int) {
    const int64_t at = int64_t{i} * to.wanted;
    kernels_.head.likeliest(logits.data + rows[i] * logits.stride, static_cast<int>(logits.stride), first, to.wanted,
                            to.ids + at, to.values + at);
  });
}

void CpuDevice::scatter_add(Rows x, const Scatter& to, Rows y) {
  const Timed timed(*this, Work::scatter);
  pool_.run(blocks(x.rows, kSmallRows), [&](int task, int) {
    const int end = std::min(x.rows, (task + 1) * kSmallRows);
    for (int r = task * kSmallRows; r < end; r++)
      kernels_.add(x.data + r * x.stride, to.weights[r], y.data + to.rows[r] * y.stride, static_cast<int>(x.stride));
  });
}

}  // namespace estream
