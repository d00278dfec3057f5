// SPDX-License-Identifier: Apache-2.0
#include "call/memo.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace kiln {
namespace {

// "KILN_" covers all of Kiln's own. The others: the default cache and settings, and what the probe
// of the GPUs follows.
constexpr std::array<std::string_view, 6> kRead = {
    "KILN_", "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=",
    "HOME=", "XDG_CACHE_HOME=",       "XDG_CONFIG_HOME="};

bool is_read(const char* variable) {
  switch (*variable) {  // most variables go no further
    case 'C':
    case 'H':
    case 'K':
    case 'X':
      return std::any_of(kRead.begin(), kRead.end(), [&](std::string_view start) {
        return std::string_view(variable).starts_with(start);
      });
    default:
      return false;
  }
}

/// A folder that is named relative to the current one.
bool is_relative(std::string_view place) {
  return !place.empty() && place.front() != '/' && place.find("://") == std::string_view::npos;
}

class Key {
 public:
  Key() {
    constexpr std::size_t kUsual = 1024;
    bytes_.reserve(kUsual);
  }
  void add(std::string_view text) {  // with its length: no two requests have one key
    add(static_cast<std::int64_t>(text.size()));
    bytes_ += text;
  }
  void add(std::int64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add_place(std::string_view place) {
    add(place);
    if (is_relative(place)) relative_ = true;
  }
  void add_environment() {
    for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
      if (is_read(*each)) add_variable(*each);
    }
  }
  std::string take() {
    if (relative_) add(std::filesystem::current_path().native());
    return std::move(bytes_);
  }

 private:
  void add_variable(std::string_view variable) {
    add(variable);
    constexpr std::array<std::string_view, 2> kPlaces = {"KILN_REGISTRY=", "KILN_LOCK="};
    for (const std::string_view name : kPlaces) {
      if (variable.starts_with(name) && is_relative(variable.substr(name.size()))) relative_ = true;
    }
  }

  std::string bytes_;
  bool relative_ = false;
};

}  // namespace

std::string memo_key(std::string_view name, const Request& request) {
  Key key;
  key.add(name);
  key.add(std::int64_t{request.version});
  key.add(static_cast<std::int64_t>(request.device.kind));
  key.add(std::int64_t{request.device.ordinal});
  key.add(request.variant);
  key.add(std::int64_t{request.allow_jit});
  key.add_place(request.registry);
  key.add_place(request.cache.native());
  key.add_place(request.lock.native());
  key.add(static_cast<std::int64_t>(request.load_mode));
  key.add(std::int64_t{request.all_gpus});
  key.add(static_cast<std::int64_t>(request.fallback.size()));
  for (const Fallback& fallback : request.fallback) {
    key.add(static_cast<std::int64_t>(fallback.kind));
    key.add(std::int64_t{fallback.version});
  }
  key.add(static_cast<std::int64_t>(request.deny.size()));
  for (const std::string& denied : request.deny) key.add(denied);
  key.add_environment();
  return key.take();
}

}  // namespace kiln
