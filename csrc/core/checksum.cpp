#include "core/checksum.h"

#define XXH_INLINE_ALL
#include "third_party/xxhash/xxhash.h"

namespace estream {

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }

Checksum::~Checksum() = default;

void Checksum::add(const void* data, size_t bytes) { XXH3_64bits_update(&state_->xxh3, data, bytes); }

uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->xxh3); }

}  // namespace estream
