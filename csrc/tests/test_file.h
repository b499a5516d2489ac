// A temporary file whose every byte is known.
#pragma once
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/harness.h"

namespace estream::tests {

inline bool holds_file(const uint8_t* memory, uint64_t offset, uint64_t length) {
  return std::memcmp(memory, file_bytes(offset, length).data(), length) == 0;
}

inline std::string utf8(const std::filesystem::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}

constexpr uint64_t kFileBlocks = 1600;

struct TestFile {
  // Not all of it ASCII: paths are UTF-8 on every system.
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     (u8"estream_t\u00e9st_" + std::filesystem::path(std::to_string(getpid())).u8string());
  std::vector<std::string> paths = {utf8(path)};

  explicit TestFile(uint64_t bytes = kFileBlocks * kBlock) {
    const std::vector<uint8_t> content = file_bytes(0, bytes);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(bytes));
    CHECK(std::filesystem::file_size(path) == bytes);
  }
  ~TestFile() { std::filesystem::remove(path); }
};

inline uint64_t checksum(const void* data, size_t bytes) { return find_kernels("portable")->checksum(data, bytes); }

}  // namespace estream::tests
