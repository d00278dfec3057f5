// SPDX-License-Identifier: Apache-2.0
#include "trust/web_source.hpp"

#include <utility>

#include "kiln/error.hpp"

namespace kiln::trust {

WebSource::WebSource(std::string url, const Patience& patience)
    : url_(std::move(url)), patience_(patience), transfer_(patience.limits, patience.stop) {
  if (!url_.ends_with('/')) url_ += '/';
}

std::optional<std::string> WebSource::fetch(const std::string& file, std::size_t most) const {
  const std::string url = url_ + file;
  std::string bytes;
  bool found = false;
  const auto once = [&](Tries::Clock::time_point until) {
    bytes.clear();
    transfer_.finish_by(until);
    const HttpAnswer answer = transfer_.ask({url}, [&](std::string_view piece) {
      bytes += piece;
      if (bytes.size() <= most) return;
      throw Error(ErrorCode::kTrust, "get " + url + ": more than " + std::to_string(most) +
                                         " bytes; nothing of it is used. Tell its publisher");
    });
    found = answer.status == 200;
    if (found || answer.status == 403 || answer.status == 404) return;
    throw TryAgain("get " + url + ": status " + std::to_string(answer.status),
                   "Check the URL, or try again later");
  };
  persist(
      patience_, file, std::chrono::seconds(0), [] { return false; }, once);
  return found ? std::optional(std::move(bytes)) : std::nullopt;
}

}  // namespace kiln::trust
