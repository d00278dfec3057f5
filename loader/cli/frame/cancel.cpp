// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/cancel.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "base/quote.hpp"
#include "loader/cli/frame/output.hpp"

namespace kiln::cli {
namespace {

// Written by the signal handler, which may call nothing that takes a lock: request_stop() does.
int g_signal_pipe = -1;

extern "C" void on_signal(int /*signal*/) {
  const int before = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(g_signal_pipe, &byte, 1);
  errno = before;
}

}  // namespace

std::stop_token stop_on_signals() {
  std::array<int, 2> ends{};
  // Handlers and not a blocked mask with sigwait: programs that Kiln starts would inherit the mask.
  // Without a pipe or a thread, a signal ends the process as it always does: a cut install leaves
  // nothing half-done.
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  std::stop_source source;
  try {
    std::thread([source, end = ends[0]]() mutable {
      char byte = 0;
      ssize_t count = -1;
      do {
        count = ::read(end, &byte, 1);
      } while (count < 0 && errno == EINTR);
      source.request_stop();
    }).detach();
  } catch (const std::system_error&) {
    return {};
  }
  g_signal_pipe = ends[1];
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one ends the process
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    // nohup, and a shell's background jobs, ignore signals on purpose.
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
  return source.get_token();
}

Waiting waiting_for_others(bool quiet, std::stop_token stop) {
  Waiting waiting{std::move(stop)};
  if (!quiet) {
    waiting.tell = [](const std::string& note) { tell("%s\n", printable(note).c_str()); };
  }
  return waiting;
}

}  // namespace kiln::cli
