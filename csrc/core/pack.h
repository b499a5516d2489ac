// From a checkpoint's weights to the packed layout of a page.
#pragma once
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace estream {

struct WeightRows {
  WeightType type;
  int columns;  // at most the matrix's inputs; the rest is zero
  std::vector<const uint8_t*> rows;
};

// Sums over all weights of a packed matrix, taken in a fixed order whatever the number of threads.
struct PackingError {
  double squared_error;  // of (weight - source)^2
  double squared;        // of source^2
};

struct PackingResult {
  int64_t bad_row;  // the first source row that holds a value which is not finite or too large for an fp16 scale, or -1
  PackingError error;
};

// Fills `to` (whose shape `m` gives): output i of the matrix is source row order[i], or zeros where that is negative.
PackingResult pack_matrix(ThreadPool& pool, const Kernels& kernels, const WeightRows& source, const int32_t* order,
                          const PackedMatrix& m, uint8_t* to);

// Codes that a source has already chosen: code times scale is the weight, as in a package.
struct CodeRows {
  const int8_t* codes;     // [rows, columns]
  const uint16_t* scales;  // fp16 bits [rows, columns / group], for the group of the matrix
  int columns;             // whole groups, at most the matrix's inputs; the rest is zero
};

// As pack_matrix, but writes the codes as they are. Returns the first source row that holds a code which the matrix's bits
// do not have, or a scale which is not finite; or -1.
int64_t pack_codes(ThreadPool& pool, const CodeRows& source, const int32_t* order, const PackedMatrix& m, uint8_t* to);

// What the weights of a matrix that is packed already differ from their source.
PackingError packing_error(ThreadPool& pool, const WeightRows& source, const int32_t* order, const PackedMatrix& m);

// Adds the squares of each column to `sums` [columns].
void add_column_squares(const WeightRows& source, double* sums);

// The weights that a packed matrix stands for: out [outputs, inputs], output i to row i.
void unpack_matrix(const PackedMatrix& m, float* out);

}  // namespace estream
