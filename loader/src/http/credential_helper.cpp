// SPDX-License-Identifier: Apache-2.0
#include "http/credential_helper.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/posix.hpp"
#include "base/process.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxOutputBytes = 64u << 10;
constexpr std::size_t kMaxServerBytes = 4096;  // fits into a pipe that nobody reads yet
constexpr int kPollMilliseconds = 50;          // how soon a stop is seen

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

HelperAnswer failed(const std::string& why) {
  return {std::nullopt, why};
}

std::string message_of(int error) {
  return std::generic_category().message(error);
}

/// Reads what is there; false at the end of the output.
bool read_more(int output, std::string& text) {
  pollfd ready{output, POLLIN, 0};
  if (::poll(&ready, 1, kPollMilliseconds) <= 0) return true;
  std::array<char, 4096> piece{};
  const ssize_t count = ::read(output, piece.data(), piece.size());
  if (count > 0) text.append(piece.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

HelperAnswer read_answer(int output, Child& child, std::chrono::milliseconds time,
                         const std::stop_token& stop) {
  const Clock::time_point end = Clock::now() + time;
  std::string text;
  bool open = true;
  while (open || !child.ended()) {
    if (stop.stop_requested()) {
      throw Error(ErrorCode::kCancelled,
                  "ask a credential helper: stopped by the caller. Nothing was changed");
    }
    if (Clock::now() >= end) {
      return failed("took over " + std::to_string(time.count()) + " ms and was ended");
    }
    if (open) {
      open = read_more(output, text);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (text.size() > kMaxOutputBytes) {
      return failed("answered with more than " + std::to_string(kMaxOutputBytes) + " bytes");
    }
  }
  if (child.was_killed()) return failed("was ended by a signal");
  if (child.exit_status() == 0) return {std::move(text), {}};
  // The protocol's word for "no such login"; every other text of a failure may hold anything.
  if (text.find("credentials not found") != std::string::npos) return failed("has none");
  return failed("failed with exit status " + std::to_string(child.exit_status()));
}

}  // namespace

HelperAnswer ask_helper(const std::string& name, const std::string& server,
                        std::chrono::milliseconds time, const std::stop_token& stop) {
  if (!is_name(name)) return failed("is no name of a helper: expected [A-Za-z0-9._-]+");
  if (server.size() > kMaxServerBytes) return failed("is not asked for so long a name");
  try {
    Pipe input = make_pipe();
    Pipe output = make_pipe();
    // Written before there is a reader: a helper that reads nothing cannot raise SIGPIPE here.
    if (const int error = try_write_all(input.write.get(), server); error != 0) {
      return failed("could not be asked: " + message_of(error));
    }
    input.write = FileDescriptor();
    Child child({"docker-credential-" + name, "get"}, environment().block(),
                {.in = input.read.get(), .out = output.write.get(), .err = Streams::kNothing});
    output.write = FileDescriptor();
    return read_answer(output.read.get(), child, time, stop);
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOENT) return failed("is not on PATH");
    return failed("could not be started: " + message_of(error.code().value()));
  }
}

}  // namespace kiln
