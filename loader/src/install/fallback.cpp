// SPDX-License-Identifier: Apache-2.0
#include "install/fallback.hpp"

#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "install/pull.hpp"

namespace kiln {
namespace {

/// The request, but for what the fallback names. The pinned variant was one of what was refused.
Request request_after(const Request& request, std::size_t position) {
  Request next = request;
  next.variant.clear();
  next.fallback.erase(next.fallback.begin(),
                      next.fallback.begin() + static_cast<std::ptrdiff_t>(position) + 1);
  const Fallback& fallback = request.fallback[position];
  if (fallback.kind == Fallback::Kind::kVersion) {
    next.version = fallback.version;
  } else {
    next.device = Device::cpu();
    next.all_gpus = false;
  }
  return next;
}

std::string describe_refusal(const Selecting& self) {
  const Resolution& refused = self.selected.resolution;
  return "no variant of " + subject_of(self) + " fits for " +
         (refused.all_gpus ? "every GPU" : to_string(refused.device)) + " (" + refused.hint + ")";
}

}  // namespace

std::string to_string(Fallback fallback) {
  return fallback.kind == Fallback::Kind::kCpu ? "cpu"
                                               : "version:" + std::to_string(fallback.version);
}

Fallback parse_fallback(std::string_view text) {
  if (text == "cpu") return Fallback::cpu();
  constexpr std::string_view kPrefix = "version:";
  if (text.starts_with(kPrefix)) {
    int version = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, version);
    if (error == std::errc() && stop == end && version >= 1) {
      return Fallback::other_version(version);
    }
  }
  throw Error(ErrorCode::kUsage, "fallback " + quote(text) + " is not cpu or version:N");
}

Selecting select_or_fall_back(std::string_view name, const Request& request) {
  std::vector<Resolution> refused;
  std::string told;
  Selecting self = start_selecting(name, request);
  for (std::size_t i = 0; i < request.fallback.size(); ++i) {
    if (self.selected.resolution.chosen) break;
    if (request.on_event) {
      request.on_event(
          {Event::Stage::kFallback, subject_of(self), 0, 0,
           describe_refusal(self) + "; trying fallback " + to_string(request.fallback[i])});
    }
    told += self.selected.no_variant + "\nfallback " + to_string(request.fallback[i]) + ": ";
    refused.push_back(std::move(self.selected.resolution));
    self = start_selecting(name, request_after(request, i));
  }
  if (!self.selected.resolution.chosen) self.selected.no_variant.insert(0, told);
  self.selected.refused = std::move(refused);
  return self;
}

}  // namespace kiln
