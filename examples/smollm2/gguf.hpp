#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace smollm2 {

/// How a tensor's numbers are stored; the values are the file format's. Files may hold other types,
/// which have a name at most.
enum class tensor_type : std::uint32_t { f32 = 0, q4_1 = 3, q8_0 = 8 };

inline std::string type_name(tensor_type type) {
  static const std::map<std::uint32_t, const char*> names{
      {0, "F32"},   {1, "F16"},   {2, "Q4_0"},  {3, "Q4_1"},  {6, "Q5_0"},
      {7, "Q5_1"},  {8, "Q8_0"},  {10, "Q2_K"}, {11, "Q3_K"}, {12, "Q4_K"},
      {13, "Q5_K"}, {14, "Q6_K"}, {30, "BF16"}};
  const auto found = names.find(std::uint32_t(type));
  return found == names.end() ? "type " + std::to_string(std::uint32_t(type)) : found->second;
}

/// So many elements of a row take so many bytes together. {0, 0} for a type whose layout is not
/// known here.
struct tensor_block {
  std::uint64_t elements, bytes;
};
inline tensor_block block_of(tensor_type type) {
  switch (type) {
    case tensor_type::f32:
      return {1, 4};
    case tensor_type::q4_1:
      return {32, 20};  // half d, half m, 32 nibbles q: d q + m
    case tensor_type::q8_0:
      return {32, 34};  // half d, 32 int8 q: d q
  }
  return {0, 0};
}

/// A tensor inside a file: `cols` numbers a row, the rows one after the other. A vector has one
/// row.
struct gguf_tensor {
  tensor_type type{};
  std::uint64_t rows = 0, cols = 0;
  const unsigned char* data = nullptr;
};

/// A model file in the GGUF format, versions 2 and 3: metadata (names with values) and tensors.
///
/// The bytes may be anything: each size and offset is checked before it is used, and a file that
/// breaks the format is refused with a std::runtime_error that says where. A tensor of an unknown
/// type is refused when it is requested.
class gguf_file {
 public:
  using value = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>,
                             std::vector<double>, std::vector<std::string>>;

  /// Reads the whole file. `name` is what errors call it.
  gguf_file(std::vector<unsigned char> bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {
    parse();
  }
  gguf_file(const gguf_file&) = delete;
  gguf_file& operator=(const gguf_file&) = delete;

  static std::vector<unsigned char> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file ? std::streamoff(file.tellg()) : -1;
    if (size < 0 || size == std::numeric_limits<std::streamoff>::max())
      throw std::runtime_error("cannot read '" + path + "'");
    std::vector<unsigned char> bytes(static_cast<std::size_t>(size));
    file.seekg(0);
    if (!file.read(reinterpret_cast<char*>(bytes.data()), size))
      throw std::runtime_error("cannot read '" + path + "'");
    return bytes;
  }

  bool has(const std::string& key) const { return values_.count(key) != 0; }
  /// The value of a key, as a T. Throws std::runtime_error where it is missing or of another kind.
  template <typename T>
  const T& get(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) fail("has no '" + key + "'");
    const T* result = std::get_if<T>(&found->second);
    if (!result) fail("has a '" + key + "' that is not " + kind<T>());
    return *result;
  }
  template <typename T>
  T get(const std::string& key, const T& otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }

  bool has_tensor(const std::string& tensor) const { return tensors_.count(tensor) != 0; }
  /// Throws std::runtime_error where there is no such tensor or its type is unknown.
  const gguf_tensor& tensor(const std::string& tensor) const {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end()) fail("has no tensor '" + tensor + "'");
    if (!found->second.data)
      fail("stores tensor '" + tensor + "' as " + type_name(found->second.type) +
           ", which is not supported");
    return found->second;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("'" + name_ + "' " + what);
  }

 private:
  static constexpr const char* broken = "is not a sound GGUF file: ";
  enum class value_type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
  };

  template <typename T>
  static const char* kind() {
    return std::is_same<T, std::int64_t>::value               ? "a whole number"
           : std::is_same<T, double>::value                   ? "a decimal number"
           : std::is_same<T, std::string>::value              ? "a text"
           : std::is_same<T, std::vector<double>>::value      ? "a list of decimal numbers"
           : std::is_same<T, std::vector<std::string>>::value ? "a list of texts"
                                                              : "a list of whole numbers";
  }

  std::size_t left() const { return bytes_.size() - at_; }

  template <typename T>
  T number() {
    if (left() < sizeof(T))
      fail(std::string(broken) + "it ends too early, at byte " + std::to_string(bytes_.size()));
    T result;
    std::memcpy(&result, bytes_.data() + at_,
                sizeof(T));  // the format is little-endian, as is every machine this runs on
    at_ += sizeof(T);
    return result;
  }
  /// A count of things that take at least `each` bytes: more than the file has room for is refused
  /// before anything is allocated.
  std::size_t count(const std::string& of_what, std::size_t each) {
    const std::uint64_t result = number<std::uint64_t>();
    if (result > left() / each)
      fail(broken + std::to_string(result) + " " + of_what + " do not fit into it");
    return static_cast<std::size_t>(result);
  }
  std::string text() {
    const std::size_t length = count("characters of a text", 1);
    std::string result(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return result;
  }
  template <typename T, typename Stored>
  T convert() {
    const Stored stored = number<Stored>();
    if (std::is_same<Stored, std::uint64_t>::value &&
        static_cast<std::uint64_t>(stored) >
            std::uint64_t(std::numeric_limits<std::int64_t>::max()))
      fail(std::string(broken) + "it holds the number " + std::to_string(stored) +
           ", which is too large");
    return static_cast<T>(stored);
  }
  std::int64_t whole_number(value_type type) {
    switch (type) {
      case value_type::u8:
        return convert<std::int64_t, std::uint8_t>();
      case value_type::i8:
        return convert<std::int64_t, std::int8_t>();
      case value_type::u16:
        return convert<std::int64_t, std::uint16_t>();
      case value_type::i16:
        return convert<std::int64_t, std::int16_t>();
      case value_type::u32:
        return convert<std::int64_t, std::uint32_t>();
      case value_type::i32:
        return convert<std::int64_t, std::int32_t>();
      case value_type::u64:
        return convert<std::int64_t, std::uint64_t>();
      case value_type::i64:
        return convert<std::int64_t, std::int64_t>();
      case value_type::boolean:
        return convert<std::int64_t, std::uint8_t>() != 0;
      default:
        fail(std::string(broken) + "value type " + std::to_string(std::uint32_t(type)) +
             " does not exist");
    }
  }
  double decimal(value_type type) {
    return type == value_type::f32 ? convert<double, float>() : convert<double, double>();
  }

  static bool is_decimal(value_type type) {
    return type == value_type::f32 || type == value_type::f64;
  }

  value read_value() {
    const value_type type{number<std::uint32_t>()};
    if (type == value_type::array) return read_array();
    if (type == value_type::string) return text();
    if (is_decimal(type)) return decimal(type);
    return whole_number(type);
  }
  value read_array() {
    const value_type type{number<std::uint32_t>()};
    if (type == value_type::array) fail("holds a list of lists, which is not supported");
    const std::size_t n = count("elements of a list", type == value_type::string ? 8 : 1);
    const auto fill = [n](auto list, const auto& next) {
      for (std::size_t i = 0; i < n; ++i) list.push_back(next());
      return value(std::move(list));
    };
    if (type == value_type::string) return fill(std::vector<std::string>(), [&] { return text(); });
    if (is_decimal(type)) return fill(std::vector<double>(), [&] { return decimal(type); });
    return fill(std::vector<std::int64_t>(), [&] { return whole_number(type); });
  }

  void parse() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) fail("is not a GGUF file");
    at_ = 4;
    const std::uint32_t version = number<std::uint32_t>();
    if (version != 2 && version != 3)
      fail("is GGUF version " + std::to_string(version) +
           "; versions 2 and 3, little-endian, are supported");
    const std::size_t tensors = count("tensors", 24), pairs = count("values", 13);
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::string key = text();
      if (!values_.emplace(key, read_value()).second)
        fail(broken + ("it holds '" + key + "' twice"));
    }

    std::vector<std::pair<gguf_tensor*, std::uint64_t>> offsets;
    for (std::size_t i = 0; i < tensors; ++i) {
      const std::string tensor = text();
      const auto [place, is_new] = tensors_.emplace(tensor, gguf_tensor());
      if (!is_new) fail(broken + ("it holds tensor '" + tensor + "' twice"));
      offsets.emplace_back(&place->second, read_tensor_head(tensor, place->second));
    }
    const std::int64_t alignment = get<std::int64_t>("general.alignment", 32);
    if (alignment < 1 || alignment > 65536 || (alignment & (alignment - 1)) != 0)
      fail(broken + ("its alignment is " + std::to_string(alignment)));
    const std::size_t step = static_cast<std::size_t>(alignment);
    const std::size_t gap = (step - at_ % step) % step;
    if (!tensors_.empty() && gap > left()) fail(std::string(broken) + "it ends before its tensors");
    for (const auto& [tensor, offset] : offsets) {
      const tensor_block block = block_of(tensor->type);
      if (block.elements == 0) continue;  // its size is unknown; tensor() refuses it
      const std::uint64_t bytes = tensor->rows * (tensor->cols / block.elements) * block.bytes,
                          room = left() - gap;
      if (offset % step != 0)
        fail(broken + ("a tensor's offset " + std::to_string(offset) + " is not aligned"));
      if (offset > room || bytes > room - offset)
        fail(broken + ("a tensor of " + std::to_string(bytes) + " bytes lies past its end"));
      tensor->data = bytes_.data() + at_ + gap + offset;
    }
  }
  /// Name, sizes and type of a tensor; returns its offset.
  std::uint64_t read_tensor_head(const std::string& name, gguf_tensor& tensor) {
    const std::uint32_t dims = number<std::uint32_t>();
    if (dims < 1 || dims > 4)
      fail(broken + ("tensor '" + name + "' has " + std::to_string(dims) + " dimensions"));
    constexpr std::uint64_t most = std::uint64_t(1)
                                   << 40;  // elements: bytes and offsets then stay far from 2^64
    tensor.rows = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const std::uint64_t size = number<std::uint64_t>();
      std::uint64_t& side = d == 0 ? tensor.cols : tensor.rows;
      if (d == 0) side = 1;
      if (size == 0 || size > most / side)
        fail(broken + ("tensor '" + name + "' has a size of " + std::to_string(size)));
      side *= size;
    }
    if (tensor.cols > most / tensor.rows) fail(broken + ("tensor '" + name + "' is too large"));
    tensor.type = tensor_type{number<std::uint32_t>()};
    const tensor_block block = block_of(tensor.type);
    if (block.elements != 0 && tensor.cols % block.elements != 0)
      fail(broken + ("tensor '" + name + "' has rows of " + std::to_string(tensor.cols) +
                     " numbers, which " + type_name(tensor.type) + " cannot hold"));
    return number<std::uint64_t>();
  }

  std::vector<unsigned char> bytes_;
  std::string name_;
  std::size_t at_ = 0;
  std::map<std::string, value> values_;
  std::map<std::string, gguf_tensor> tensors_;
};

}  // namespace smollm2
