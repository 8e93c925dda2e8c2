#pragma once

#include <heed/detail/check.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

// Parts of a cache as bytes: a header, then what the cache writes. Numbers are as this machine has
// them; on one of the other byte order the version is another number.

HEED_NAMESPACE_BEGIN
namespace detail {

enum class saved_kind : std::uint32_t { sequence = 1, cache = 2 };

struct saved_header {
  char magic[8] = {'h', 'e', 'e', 'd', ' ', 'k', 'v', '\n'};
  std::uint32_t version = 1;
  saved_kind kind = saved_kind::cache;
  char type[16] = {};  // of keys and values
  std::int64_t page_rows = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t num_pages = 0;  // of a cache
  std::int64_t count = 0;      // tokens of a sequence, sequences of a cache
  std::int64_t bytes = 0;      // header included
  std::uint64_t checksum = 0;  // of all bytes, with 0 in its place
};
static_assert(sizeof(saved_header) == 96, "saved bytes have no gaps");

/// Steps that are one-to-one: no change within one word leaves the sum as it is.
inline std::uint64_t checksum(const void* data, size_type bytes, std::uint64_t sum) {
  for (size_type at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(data) + at,
                static_cast<std::size_t>((std::min)(bytes - at, size_type{8})));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 32;
  }
  return sum;
}
inline std::uint64_t checksum(saved_header header, const void* data) {
  header.checksum = 0;
  const size_type begin = sizeof header;
  return checksum(static_cast<const char*>(data) + begin, header.bytes - begin,
                  checksum(&header, begin, 0));
}

/// Writes elements one after the other.
struct byte_writer {
  char* at;

  template <typename Element>
  void move(const Element* from, size_type count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Element);
    if (bytes > 0) std::memcpy(at, static_cast<const void*>(from), bytes);
    at += bytes;
  }
};
/// Reads them.
struct byte_reader {
  const char* at;

  template <typename Element>
  void move(Element* to, size_type count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Element);
    if (bytes > 0) std::memcpy(static_cast<void*>(to), at, bytes);
    at += bytes;
  }
};

inline void check_bytes(const char* function, const void* data, size_type bytes, size_type needed) {
  if (bytes < needed || !data)
    fail_with("heed::", function, ": ", bytes, " bytes at ", data ? "an" : "a null",
              " address are not the ", needed, " that it takes");
}

/// Writes header and contents: write(byte_writer&).
template <typename Write>
void save_bytes(const char* function, saved_header header, void* to, size_type bytes,
                const Write& write) {
  check_bytes(function, to, bytes, header.bytes);
  byte_writer out{static_cast<char*>(to) + sizeof header};
  write(out);
  header.checksum = checksum(header, to);
  std::memcpy(to, &header, sizeof header);
}

/// The header of bytes that are whole, and fit `expected` in all but count, bytes and checksum.
inline saved_header check_saved(const char* function, const saved_header& expected,
                                const void* from, size_type bytes) {
  saved_header header;
  check_bytes(function, from, bytes, sizeof header);
  std::memcpy(&header, from, sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
    fail_with("heed::", function, ": the bytes are not those of a paged_kv_cache");
  if (header.version != expected.version)
    fail_with("heed::", function, ": the bytes have version ", header.version, ", this is version ",
              expected.version);
  if (header.kind != expected.kind)
    fail_with("heed::", function, ": the bytes do not hold a ",
              expected.kind == saved_kind::cache ? "whole cache" : "sequence");
  if (std::memcmp(header.type, expected.type, sizeof header.type) != 0) {
    std::string type(header.type, sizeof header.type);
    for (char& letter : type)
      if (letter != 0 && (letter < ' ' || letter > '~')) letter = '?';
    fail_with("heed::", function, ": the bytes hold ", type, ", but the cache is of ",
              expected.type);
  }
  const auto check_one = [&](const char* what, std::int64_t got, std::int64_t wanted) {
    check_equal(function, what, got, "the cache's", wanted);
  };
  check_one("the bytes: page_rows", header.page_rows, expected.page_rows);
  check_one("the bytes: num_kv_heads", header.num_kv_heads, expected.num_kv_heads);
  check_one("the bytes: key_dim", header.key_dim, expected.key_dim);
  check_one("the bytes: value_dim", header.value_dim, expected.value_dim);
  check_one("the bytes: num_pages", header.num_pages, expected.num_pages);
  if (header.bytes < std::int64_t{sizeof header} || header.bytes > bytes)
    fail_with("heed::", function, ": the header speaks of ", header.bytes, " bytes, but there are ",
              bytes);
  if (header.checksum != checksum(header, from))
    fail_with("heed::", function, ": the bytes are damaged: their checksum is another");
  return header;
}

}  // namespace detail
HEED_NAMESPACE_END
