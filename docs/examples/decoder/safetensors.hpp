// SPDX-License-Identifier: Apache-2.0
//
// Safetensors: a file of named tensors, mapped and read where it lies: eight bytes of length, a
// JSON header, the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <kiln/kiln.hpp>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// What a model's files say is not what the program reads: the text names file and tensor, what was
// found, and what was expected.
class UnreadableModel : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Shape = std::vector<std::int64_t>;

struct StoredTensor {
  std::string dtype;  // "BF16"
  Shape shape;
  const std::byte* data;
  std::size_t bytes;
};
kiln::DType dtype_of(const StoredTensor& tensor);
// Of a tensor of this shape; nullopt: an extent is negative, or they are too many to be counted.
std::optional<std::size_t> bytes_of(kiln::DType dtype, const Shape& shape);

class Safetensors {
 public:
  // Throws UnreadableModel, naming the file, for what is not a whole file of this format.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  // nullptr: it is not there.
  const StoredTensor* find(const std::string& name) const;
  // Throws UnreadableModel, naming the tensor, unless it is there in one of these dtypes and with
  // one of these shapes.
  const StoredTensor& at(const std::string& name, const std::vector<std::string>& dtypes,
                         const std::vector<Shape>& shapes) const;
  // Throws UnreadableModel with the file, this name, and what was found.
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;

 private:
  std::string file_;
  void* mapped_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, StoredTensor> tensors_;
};
