// SPDX-License-Identifier: Apache-2.0
//
// Safetensors: a file of named tensors, mapped and read where it lies: eight bytes of length, a
// JSON header, the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

struct StoredTensor {
  std::string dtype;  // "BF16"
  std::vector<std::int64_t> shape;
  const std::byte* data;
  std::size_t bytes;
};

class Safetensors {
 public:
  // Throws std::runtime_error, naming the file, for what is not a whole file of this format.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  bool has(const std::string& name) const { return tensors_.contains(name); }
  // Throws std::runtime_error, naming the tensor, unless it is there with this shape, in bfloat16.
  const std::byte* bfloat16(const std::string& name, const std::vector<std::int64_t>& shape) const;

 private:
  std::string file_;
  void* mapped_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, StoredTensor> tensors_;
};
