// Checksums of bytes in pieces are those of the whole.
#include "core/checksum.h"

#include <algorithm>

#include "tests/harness.h"

namespace estream::tests {

void checksums_come_in_pieces() {
  const std::vector<uint8_t> bytes = file_bytes(0, 20000);
  for (const size_t size : {0, 100, 20000})
    for (const size_t piece : {1, 7, 256, 20000}) {
      Checksum sum;
      for (size_t at = 0; at < size; at += piece) sum.add(bytes.data() + at, std::min(piece, size - at));
      CHECK(sum.value() == fastest_kernels().checksum(bytes.data(), size));
    }
}

}  // namespace estream::tests
