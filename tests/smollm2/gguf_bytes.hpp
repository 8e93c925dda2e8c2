#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

/// Writes GGUF, right or wrong, piece by piece.
class gguf_bytes {
 public:
  template <typename T>
  gguf_bytes& put(T number) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &number, sizeof(T));
    return *this;
  }
  gguf_bytes& text(const std::string& text) {
    put(std::uint64_t(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  gguf_bytes& head(std::uint64_t tensors, std::uint64_t pairs, std::uint32_t version = 3) {
    for (const char c : {'G', 'G', 'U', 'F'}) put(c);
    return put(version).put(tensors).put(pairs);
  }
  template <typename T>
  gguf_bytes& value(const std::string& key, std::uint32_t type, T number) {
    return text(key).put(type).put(number);
  }
  gguf_bytes& value(const std::string& key, const std::string& of) {
    return text(key).put(std::uint32_t(8)).text(of);
  }
  gguf_bytes& array(const std::string& key, std::uint32_t type, std::uint64_t count) {
    return text(key).put(std::uint32_t(9)).put(type).put(count);
  }
  gguf_bytes& tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                     std::uint32_t type, std::uint64_t offset) {
    text(name).put(std::uint32_t(dims.size()));
    for (const std::uint64_t size : dims) put(size);
    return put(type).put(offset);
  }
  /// Zeros up to a multiple of `alignment`, and `count` bytes more that count up.
  gguf_bytes& data(std::size_t count, std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    for (std::size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<unsigned char>(i));
    return *this;
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};
