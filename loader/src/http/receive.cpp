// SPDX-License-Identifier: Apache-2.0
#include "http/receive.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>

#include "base/quote.hpp"

namespace kiln {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 10;  // of one answer

/// The value of a header line of this name, which is in lower case.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  const bool same = line.size() > name.size() && line[name.size()] == ':' &&
                    std::equal(name.begin(), name.end(), line.begin(),
                               [](char a, unsigned char b) { return a == std::tolower(b); });
  if (!same) return std::nullopt;
  line.remove_prefix(name.size() + 1);
  const std::size_t first = line.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1);
}

void join(std::string& list, std::string_view value) {
  list += (list.empty() ? "" : ", ") + std::string(value);
}

/// "bytes 5-9/10" against what was asked for: from 5 on, of 10.
bool is_range(std::string_view value, std::uint64_t from, std::uint64_t total) {
  const std::string start = "bytes " + std::to_string(from) + "-" + std::to_string(total - 1) + "/";
  return value == start + std::to_string(total) || value == start + "*";
}

}  // namespace

std::size_t Receiver::header(char* data, std::size_t, std::size_t size, void* self) {
  Receiver& receiver = *static_cast<Receiver*>(self);
  try {
    receiver.take_header({data, size});
    return size;
  } catch (...) {
    receiver.failure_ = std::current_exception();
    return 0;
  }
}

void Receiver::take_header(std::string_view line) {
  header_bytes_ += line.size();
  if (header_bytes_ > kMaxHeaderBytes) {
    throw Error(ErrorCode::kNetwork, "get " + answer_.url + ": its headers have more than " +
                                         std::to_string(kMaxHeaderBytes) +
                                         " bytes. Check the registry, or the proxy before it");
  }
  if (line.starts_with("HTTP/")) {  // what an interim answer (1xx) said before does not count
    const std::string url = answer_.url;
    answer_ = {};
    answer_.url = url;
    encoding_.clear();
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos) {
      line.remove_prefix(space + 1);
      std::from_chars(line.data(), line.data() + line.size(), answer_.status);
    }
    return;
  }
  if (const auto value = value_of(line, "docker-content-digest")) answer_.content_digest = *value;
  if (const auto value = value_of(line, "www-authenticate")) join(answer_.challenge, *value);
  if (const auto value = value_of(line, "content-type")) answer_.content_type = *value;
  if (const auto value = value_of(line, "content-range")) answer_.content_range = *value;
  if (const auto value = value_of(line, "location")) answer_.location = *value;
  if (const auto value = value_of(line, "retry-after")) answer_.retry_after = *value;
  if (const auto value = value_of(line, "link")) join(answer_.link, *value);
  if (const auto value = value_of(line, "content-encoding")) encoding_ = *value;
  if (value_of(line, "content-length") || value_of(line, "transfer-encoding")) {
    answer_.has_length = true;
  }
}

bool Receiver::wants_body() {
  if (answer_.status == 200) return true;
  return answer_.status == 206 && request_.from > 0 &&
         is_range(answer_.content_range, request_.from, request_.total);
}

void Receiver::begin_body() {
  begun_ = true;
  if (!encoding_.empty() && encoding_ != "identity") {
    throw Error(ErrorCode::kIntegrity,
                "get " + answer_.url + ": the body comes with Content-Encoding " +
                    quote(encoding_) +
                    ", expected the stored bytes; nothing was loaded. Turn "
                    "compression off at the registry, or at the proxy before it");
  }
  answer_.taken = true;
  if (answer_.status == 200 && request_.from > 0 && request_.begin_anew) request_.begin_anew();
}

std::size_t Receiver::body(char* data, std::size_t, std::size_t size, void* self) {
  Receiver& receiver = *static_cast<Receiver*>(self);
  if (!receiver.wants_body()) {
    // A short page of an error is read to its end, so that the connection can be kept.
    constexpr std::uint64_t kMaxDroppedBytes = std::uint64_t{64} << 10;
    receiver.dropped_ += size;
    receiver.enough_ = receiver.dropped_ > kMaxDroppedBytes;
    return receiver.enough_ ? 0 : size;
  }
  try {
    if (!receiver.begun_) receiver.begin_body();
    receiver.sink_({data, size});
    return size;
  } catch (...) {
    receiver.failure_ = std::current_exception();
    return 0;  // libcurl stops the transfer
  }
}

void Receiver::finish() {
  if (!begun_ && wants_body()) begin_body();
}

}  // namespace kiln
