// SPDX-License-Identifier: Apache-2.0
#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

Safetensors::Safetensors(const std::filesystem::path& path) : file_(path.string()) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("read " + file_ + ": " + why);
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
  const nlohmann::json names = nlohmann::json::parse(text, text + header);
  for (const auto& [name, entry] : names.items()) {
    if (name == "__metadata__") continue;
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
    if (begin > end || end > data_bytes) fail(name + " lies outside of the file");
    tensors_[name] = {entry.at("dtype"), entry.at("shape"), data + begin, end - begin};
  }
}

Safetensors::~Safetensors() {
  ::munmap(mapped_, size_);
}

const std::byte* Safetensors::bfloat16(const std::string& name,
                                       const std::vector<std::int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error("read " + file_ + ": it has no " + name);
  const StoredTensor& tensor = found->second;
  const auto count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  if (tensor.dtype != "BF16" || tensor.shape != shape ||
      tensor.bytes != 2 * static_cast<std::size_t>(count)) {
    throw std::runtime_error("read " + file_ + ": " + name + " is " + tensor.dtype + " " +
                             nlohmann::json(tensor.shape).dump() + ", expected BF16 " +
                             nlohmann::json(shape).dump());
  }
  return tensor.data;
}
