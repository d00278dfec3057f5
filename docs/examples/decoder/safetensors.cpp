// SPDX-License-Identifier: Apache-2.0
#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace {

constexpr std::pair<const char*, kiln::DType> kDTypes[] = {
    {"BF16", kiln::DType::kBFloat16}, {"F16", kiln::DType::kFloat16},
    {"F32", kiln::DType::kFloat32},   {"F8_E4M3", kiln::DType::kFloat8E4M3FN},
    {"I8", kiln::DType::kInt8},       {"I32", kiln::DType::kInt32},
    {"I64", kiln::DType::kInt64},
};

}  // namespace

kiln::DType dtype_of(const StoredTensor& tensor) {
  for (const auto& [name, dtype] : kDTypes) {
    if (tensor.dtype == name) return dtype;
  }
  throw UnreadableModel("a tensor is " + tensor.dtype + ", which is none of those that are read");
}

std::optional<std::size_t> bytes_of(kiln::DType dtype, const Shape& shape) {
  auto bytes = static_cast<std::int64_t>(kiln::size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return static_cast<std::size_t>(bytes);
}

Safetensors::Safetensors(const std::filesystem::path& path) : file_(path.string()) {
  const auto fail = [&](const std::string& why) {
    throw UnreadableModel("read " + file_ + ": " + why);
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) fail("it cannot be opened");
  size_ = static_cast<std::size_t>(status.st_size);
  std::uint64_t header = 0;
  if (size_ < sizeof(header)) fail("it is too short for a safetensors file");
  mapped_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  ::close(descriptor);
  if (mapped_ == MAP_FAILED) fail("it cannot be mapped");
  const auto* bytes = static_cast<const std::byte*>(mapped_);
  std::memcpy(&header, bytes, sizeof(header));
  if (header > size_ - sizeof(header)) fail("its header is longer than the file");
  const auto* text = reinterpret_cast<const char*>(bytes + sizeof(header));
  const std::byte* data = bytes + sizeof(header) + header;
  const std::size_t data_bytes = size_ - sizeof(header) - header;
  std::string read = "its header";
  try {
    const nlohmann::json names = nlohmann::json::parse(text, text + header);
    if (!names.is_object()) fail("its header is no object of tensors");
    for (const auto& [name, entry] : names.items()) {
      if (name == "__metadata__") continue;
      read = "its header's " + name;
      const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
      if (begin > end || end > data_bytes) fail(name + " lies outside of the file");
      tensors_[name] = {entry.at("dtype"), entry.at("shape"), data + begin, end - begin};
    }
  } catch (const nlohmann::json::exception& error) {
    fail(read + " is not of this format: " + error.what());
  }
}

Safetensors::~Safetensors() {
  ::munmap(mapped_, size_);
}

const StoredTensor* Safetensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void Safetensors::refuse(const std::string& name, const std::string& why) const {
  throw UnreadableModel("read " + file_ + ": " + name + " " + why);
}

const StoredTensor& Safetensors::at(const std::string& name, const std::vector<std::string>& dtypes,
                                    const std::vector<Shape>& shapes) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw UnreadableModel("read " + file_ + ": it has no " + name);
  if (std::ranges::find(dtypes, tensor->dtype) == dtypes.end() ||
      std::ranges::find(shapes, tensor->shape) == shapes.end()) {
    std::string expected;
    for (const std::string& dtype : dtypes) expected += (expected.empty() ? "" : " or ") + dtype;
    std::string of;
    for (const Shape& shape : shapes)
      of += (of.empty() ? " " : " or ") + nlohmann::json(shape).dump();
    refuse(name, "is " + tensor->dtype + " " + nlohmann::json(tensor->shape).dump() +
                     ", expected " + expected + of);
  }
  if (bytes_of(dtype_of(*tensor), tensor->shape) != tensor->bytes)
    refuse(name, "has " + std::to_string(tensor->bytes) + " bytes, which are not its shape's");
  return *tensor;
}
