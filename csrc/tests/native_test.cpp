// Tests of the plain C++ library without Python, so that sanitizers, cross builds and emulators can run them:
//   estream_native_test [name]
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "tests/harness.h"

#define ALL_TESTS(TEST)                             \
  TEST(platform_tells_memory_and_processors)        \
  TEST(direct_reads_take_multiples_of_64_kib)       \
  TEST(variants_are_chosen_by_name)                 \
  TEST(checksums_are_those_of_xxh3)                 \
  TEST(codes_are_exact_in_every_variant)            \
  TEST(integers_are_exact_in_every_variant)         \
  TEST(products_match_their_definition)             \
  TEST(float_kernels_match_their_definition)        \
  TEST(attention_matches_its_definition)            \
  TEST(linear_attention_matches_its_definition)     \
  TEST(linear_attention_takes_no_rows)              \
  TEST(logits_are_reduced_slice_by_slice)           \
  TEST(arena_is_aligned_zeroed_writable)            \
  TEST(checksums_come_in_pieces)                    \
  TEST(pool_runs_every_index_once)                  \
  TEST(pool_wakes_sleeping_workers)                 \
  TEST(reader_reads_runs_direct_and_buffered)       \
  TEST(reader_gathers_scattered_parts)              \
  TEST(reader_reports_failed_pages)                 \
  TEST(reader_reports_what_cannot_be_read)          \
  TEST(reader_refuses_directories)                  \
  TEST(reader_cancels)                              \
  TEST(reader_withdraws)                            \
  TEST(reader_leaves_no_thread)                     \
  TEST(reader_publishes_failures_last)              \
  TEST(reader_wakes_who_waits_for_a_cancelled_page) \
  TEST(packing_comes_back_close)                    \
  TEST(given_codes_are_kept)                        \
  TEST(calibrated_codes_are_the_same_and_better)    \
  TEST(experts_do_not_depend_on_threads_or_company) \
  TEST(routing_breaks_ties_by_id)                   \
  TEST(tokens_are_listed_by_expert)

namespace estream::tests {

#define DECLARE(name) void name();
ALL_TESTS(DECLARE)

namespace {

struct Test {
  const char* name;
  void (*run)();
};

#define ENTRY(name) {#name, name},
const Test kTests[] = {ALL_TESTS(ENTRY)};

bool passes(const Test& test) {
  std::string failure;
  where.clear();
  try {
    test.run();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::printf("%s %s%s%s\n", failure.empty() ? "ok    " : "FAILED", test.name, failure.empty() ? "" : ": ", failure.c_str());
  std::fflush(stdout);
  return failure.empty();
}

}  // namespace

}  // namespace estream::tests

int main(int argc, char** argv) {
  std::printf("kernels:");
  for (const char* const* name = estream::available_kernels(); *name; name++) std::printf(" %s", *name);
  std::printf("\n");
  int passed = 0, failed = 0;
  for (const estream::tests::Test& test : estream::tests::kTests)
    if (argc < 2 || std::strcmp(argv[1], test.name) == 0) (passes(test) ? passed : failed)++;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0;
}
