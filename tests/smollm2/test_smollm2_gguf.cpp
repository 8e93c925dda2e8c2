#include "../catch.hpp"
#include "gguf.hpp"
#include "gguf_bytes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using smollm2::gguf_file;

/// A small file with a value of every kind and a tensor of every type.
gguf_bytes sound_file() {
  gguf_bytes file;
  file.head(5, 9);
  file.value("a.u8", 0, std::uint8_t(200))
      .value("a.i32", 5, std::int32_t(-7))
      .value("a.u64", 10, std::uint64_t(1) << 40);
  file.value("a.f32", 6, 0.5f)
      .value("a.f64", 12, 0.25)
      .value("a.true", 7, std::uint8_t(1))
      .value("a.text", "caf\xC3\xA9");
  file.array("a.numbers", 3, 2).put(std::int16_t(-1)).put(std::int16_t(2));
  file.array("a.texts", 8, 2).text("one").text("");
  file.tensor("f32", {3, 2}, 0, 0)
      .tensor("vector", {4}, 0, 32)
      .tensor("q4_1", {64, 2}, 3, 64)
      .tensor("q8_0", {32, 1, 2}, 8, 160);
  file.tensor("other", {256, 3}, 14, 0);
  return file.data(160 + 68);
}

/// Reads everything that the file offers, each byte of each tensor too, so that a wrong pointer
/// meets the address sanitizer.
unsigned read_all(const std::vector<unsigned char>& bytes) {
  const gguf_file file(bytes, "test");
  unsigned sum = 0;
  for (const char* const name : {"f32", "vector", "q4_1", "q8_0", "other"}) {
    if (!file.has_tensor(name)) continue;
    const smollm2::gguf_tensor& tensor = file.tensor(name);
    const smollm2::tensor_block block = smollm2::block_of(tensor.type);
    const std::uint64_t size = tensor.rows * tensor.cols / block.elements * block.bytes;
    for (std::uint64_t i = 0; i < size; ++i) sum += tensor.data[i];
  }
  return sum;
}

/// The file is read or refused with a std::runtime_error; anything else fails the test.
bool is_refused(const std::vector<unsigned char>& bytes) {
  try {
    read_all(bytes);
    return false;
  } catch (const std::runtime_error&) {
    return true;
  }
}

std::string refusal(const gguf_bytes& file) {
  try {
    read_all(file.bytes());
    return "not refused";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("A GGUF file's values and tensors are read") {
  const gguf_file file(sound_file().bytes(), "test");
  CHECK(file.get<std::int64_t>("a.u8") == 200);
  CHECK(file.get<std::int64_t>("a.i32") == -7);
  CHECK(file.get<std::int64_t>("a.u64") == std::int64_t(1) << 40);
  CHECK(file.get<std::int64_t>("a.true") == 1);
  CHECK(file.get<double>("a.f32") == 0.5);
  CHECK(file.get<double>("a.f64") == 0.25);
  CHECK(file.get<std::string>("a.text") == "caf\xC3\xA9");
  CHECK(file.get<std::vector<std::int64_t>>("a.numbers") == std::vector<std::int64_t>{-1, 2});
  CHECK(file.get<std::vector<std::string>>("a.texts") == std::vector<std::string>{"one", ""});
  CHECK(file.get<double>("a.absent", 1.5) == 1.5);
  const smollm2::gguf_tensor& q4 = file.tensor("q4_1");
  CHECK((q4.rows == 2 && q4.cols == 64 && q4.data[0] == 64 && q4.data[79] == 143));
  const smollm2::gguf_tensor& q8 = file.tensor("q8_0");
  CHECK((q8.rows == 2 && q8.cols == 32 && q8.data[0] == 160));
}

TEST_CASE("What a GGUF file lacks is named") {
  const gguf_file file(sound_file().bytes(), "test");
  CHECK_THROWS_WITH(file.get<double>("b"), "'test' has no 'b'");
  CHECK_THROWS_WITH(file.get<double>("a.u8"), "'test' has a 'a.u8' that is not a decimal number");
  CHECK_THROWS_WITH(file.tensor("b"), "'test' has no tensor 'b'");
  CHECK_THROWS_WITH(file.tensor("other"),
                    "'test' stores tensor 'other' as Q6_K, which is not supported");
  CHECK_THROWS_WITH(gguf_file::read("no/such/file"), "cannot read 'no/such/file'");
}

TEST_CASE("A hostile GGUF file is refused with the reason") {
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  CHECK(refusal(gguf_bytes()) == "'test' is not a GGUF file");
  CHECK_THAT(refusal(gguf_bytes().head(0, 0, 1)), ContainsSubstring("GGUF version 1"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 0, 0x03000000)), ContainsSubstring("little-endian"));
  CHECK_THAT(refusal(gguf_bytes().head(huge, 0)),
             ContainsSubstring("18446744073709551615 tensors do not fit"));
  CHECK_THAT(refusal(gguf_bytes().head(0, huge / 2)), ContainsSubstring("values do not fit"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 1).put(huge).data(64)),
             ContainsSubstring("characters of a text do not fit"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 1).array("a", 8, huge).data(64)),
             ContainsSubstring("elements of a list do not fit"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 1).array("a", 9, 1).data(64)),
             ContainsSubstring("a list of lists"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 1).value("a", 77, 0)),
             ContainsSubstring("value type 77 does not exist"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 1).value("a", 10, huge)), ContainsSubstring("too large"));
  CHECK_THAT(refusal(gguf_bytes().head(0, 2).value("a", 5, 1).value("a", 5, 2)),
             ContainsSubstring("'a' twice"));

  const auto with_tensor = [](const std::vector<std::uint64_t>& dims, std::uint32_t type,
                              std::uint64_t offset) {
    return refusal(gguf_bytes().head(1, 0).tensor("f32", dims, type, offset).data(64));
  };
  CHECK(with_tensor({16}, 0, 0) == "not refused");
  CHECK_THAT(with_tensor({}, 0, 0), ContainsSubstring("0 dimensions"));
  CHECK_THAT(with_tensor({1, 1, 1, 1, 1}, 0, 0), ContainsSubstring("5 dimensions"));
  CHECK_THAT(with_tensor({0}, 0, 0), ContainsSubstring("a size of 0"));
  CHECK_THAT(with_tensor({huge}, 0, 0), ContainsSubstring("a size of 18446744073709551615"));
  CHECK_THAT(with_tensor({1, std::uint64_t(1) << 32, std::uint64_t(1) << 32}, 0, 0),
             ContainsSubstring("a size of 4294967296"));
  CHECK_THAT(with_tensor({std::uint64_t(1) << 32, std::uint64_t(1) << 32}, 0, 0),
             ContainsSubstring("too large"));
  CHECK_THAT(with_tensor({std::uint64_t(1) << 40}, 0, 0), ContainsSubstring("past its end"));
  CHECK_THAT(with_tensor({17}, 0, 0), ContainsSubstring("past its end"));
  CHECK_THAT(with_tensor({16}, 0, 32), ContainsSubstring("past its end"));
  CHECK_THAT(with_tensor({16}, 0, huge - 31), ContainsSubstring("past its end"));
  CHECK_THAT(with_tensor({16}, 0, 8), ContainsSubstring("not aligned"));
  CHECK_THAT(with_tensor({33}, 8, 0),
             ContainsSubstring("rows of 33 numbers, which Q8_0 cannot hold"));
  CHECK_THAT(
      refusal(gguf_bytes().head(2, 0).tensor("f32", {1}, 0, 0).tensor("f32", {1}, 0, 0).data(64)),
      ContainsSubstring("twice"));
  for (const std::uint32_t alignment : {0u, 3u, 1u << 31})
    CHECK_THAT(refusal(gguf_bytes()
                           .head(1, 1)
                           .value("general.alignment", 4, alignment)
                           .tensor("f32", {1}, 0, 0)
                           .data(64)),
               ContainsSubstring("its alignment is"));
}

TEST_CASE("A GGUF file that is cut short anywhere is refused") {
  std::vector<unsigned char> bytes = sound_file().bytes();
  std::vector<unsigned char> without_other =
      bytes;  // `other` is refused in any case: give it a known type
  const std::string name = "other";
  const auto at = std::search(without_other.begin(), without_other.end(), name.begin(), name.end());
  *(at + 5 + 4 + 16) =
      0;  // after the name, the number of dimensions and two sizes: F32, too large for the file
  CHECK(is_refused(without_other));
  *(at + 5 + 4) = 1;  // 1 x 3 of F32 do fit
  *(at + 5 + 4 + 1) = 0;
  CHECK(!is_refused(without_other));
  for (std::size_t size = 0; size < without_other.size(); ++size) {
    CAPTURE(size);
    CHECK(is_refused({without_other.begin(), without_other.begin() + std::ptrdiff_t(size)}));
  }
}

TEST_CASE("A GGUF file with wrong bytes is read or refused, and nothing worse") {
  const std::vector<unsigned char> sound = sound_file().bytes();
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random()) % n; };
  int refused = 0;
  constexpr int rounds = 20000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<unsigned char> bytes = sound;
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
      const std::size_t at = below(bytes.size() - 8);
      if (below(2) == 0) {
        bytes[at] = static_cast<unsigned char>(random());
      } else {  // a size at one of the edges
        const std::uint64_t edges[] = {0,
                                       1,
                                       0x7FFFFFFF,
                                       0x80000000,
                                       0xFFFFFFFF,
                                       std::uint64_t(1) << 32,
                                       ~std::uint64_t(0) >> 1,
                                       ~std::uint64_t(0) - below(64)};
        std::memcpy(bytes.data() + at, &edges[below(8)], 8);
      }
    }
    refused += is_refused(bytes);
  }
  CHECK(refused > rounds / 2);
}
