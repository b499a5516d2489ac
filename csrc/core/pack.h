// Packs a checkpoint's weights into the layout of a page.
#pragma once
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace estream {

struct WeightRows {
  WeightType type;
  int columns;  // at most the matrix's inputs; the missing ones are zero
  std::vector<const uint8_t*> rows;
};

// Sums over all weights of a packed matrix. Their order, and so their bits, do not depend on the number of threads.
struct PackingError {
  double squared_error;  // of (weight - source)^2
  double squared;        // of source^2
};

struct PackingResult {
  int64_t bad_row;  // the first source row with a value that is not finite or too large for an fp16 scale, or -1
  PackingError error;
};

// Quantises and packs into `to`, whose shape is that of `m`. Output i of the matrix is source row order[i], or zeros where that
// is negative.
PackingResult pack_matrix(ThreadPool& pool, const Kernels& kernels, const WeightRows& source, const int32_t* order,
                          const PackedMatrix& m, uint8_t* to);

// Codes that the checkpoint already has. As in a package, a weight is its code times its scale.
struct CodeRows {
  const int8_t* codes;     // [rows, columns]
  const uint16_t* scales;  // bits of fp16 [rows, columns / group], with the matrix's group
  int columns;             // whole groups, at most the matrix's inputs; the missing ones are zero
};

// Like pack_matrix, but copies the codes. Returns the first source row with a code that the matrix's bits cannot hold or with a
// scale that is not finite, or -1.
int64_t pack_codes(ThreadPool& pool, const CodeRows& source, const int32_t* order, const PackedMatrix& m, uint8_t* to);

// The error of an already packed matrix against its source.
PackingError packing_error(ThreadPool& pool, const WeightRows& source, const int32_t* order, const PackedMatrix& m);

// Adds the squares of each column to `sums` [columns].
void add_column_squares(const WeightRows& source, double* sums);

// Computes the weights of a packed matrix: out [outputs, inputs].
void unpack_matrix(const PackedMatrix& m, float* out);

}  // namespace estream
