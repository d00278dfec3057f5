// SPDX-License-Identifier: Apache-2.0
#include "call/memo.hpp"

#include <filesystem>
#include <system_error>

#include "kiln/request.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

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
    const Environment& variables = environment();
    add(variables.deciding());
    for (const std::string_view name : {"KILN_REGISTRY", "KILN_LOCK"}) {
      if (is_relative(variables.text(name))) relative_ = true;
    }
  }
  std::string take() {
    if (relative_) {
      std::error_code error;  // a folder that is gone has no name, and the install says so
      add(std::filesystem::current_path(error).native());
    }
    return std::move(bytes_);
  }

 private:
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
