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

}  // namespace

std::string memo_key(std::string_view name, const Request& request) {
  constexpr std::size_t kUsual = 1024;
  std::string key;
  key.reserve(kUsual);
  bool relative = false;
  const auto number = [&](auto value) {
    const auto bytes = static_cast<std::int64_t>(value);
    key.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  };
  const auto text = [&](std::string_view value) {  // with its length: no two requests have one key
    number(value.size());
    key += value;
  };
  const auto place = [&](std::string_view value) {
    text(value);
    relative = relative || is_relative(value);
  };
  text(name);
  number(request.version);
  number(request.device.kind);
  number(request.device.ordinal);
  text(request.variant);
  number(request.allow_jit);
  place(request.registry);
  place(request.from);
  place(request.cache.native());
  place(request.lock.native());
  number(request.load_mode);
  number(request.all_gpus);
  number(request.fallback.size());
  for (const Fallback& fallback : request.fallback) {
    number(fallback.kind);
    number(fallback.version);
  }
  number(request.deny.size());
  for (const std::string& denied : request.deny) text(denied);
  const Environment& variables = environment();
  text(variables.deciding());
  relative = relative || is_relative(variables.text("KILN_REGISTRY")) ||
             is_relative(variables.text("KILN_LOCK"));
  if (relative) {
    std::error_code error;  // a folder that is gone has no name, and the install says so
    text(std::filesystem::current_path(error).native());
  }
  return key;
}

}  // namespace kiln
