// What is common to the variants, and the choice among them.
#include <stdexcept>

#include "tests/harness.h"

namespace estream::tests {

void checksums_are_those_of_xxh3() {
  const std::vector<uint8_t> bytes = file_bytes(0, 20000);
  for_each_variant([&](const Kernels& kernels) {
    CHECK(kernels.checksum(bytes.data(), 0) == 0x2d06800538d394c2u &&
          kernels.checksum(bytes.data(), 100) == 0x604833b2d90d0189u);
    CHECK(kernels.checksum(bytes.data(), 20000) == 0x68288119431c0e24u);
  });
}

void variants_are_chosen_by_name() {
  for_each_variant([](const Kernels& kernels) {
    CHECK(kernels.name == where && find_kernels(kernels.name) == &kernels);
    CHECK(fastest_kernels().name == std::string(available_kernels()[0]));
  });
  CHECK(find_kernels("absent") == nullptr);
  const char* set = std::getenv("ESTREAM_KERNELS");
  const std::string before = set ? set : "";
  choose_kernels("absent");
  std::string message;
  try {
    select_kernels();
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  choose_kernels(before);
  CHECK(message.find("'absent'") != std::string::npos && message.find("portable") != std::string::npos);
}

}  // namespace estream::tests
