// SPDX-License-Identifier: Apache-2.0
#include "http/credential_helper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/posix.hpp"
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

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

std::optional<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

struct SpawnActions {
  SpawnActions() { posix_spawn_file_actions_init(&value); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&value); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t value{};
};

/// The child gets the signals of a fresh program, whatever this thread blocks or ignores.
struct SpawnAttributes {
  SpawnAttributes() {
    posix_spawnattr_init(&value);
    sigset_t set;
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&value, &set);
    sigaddset(&set, SIGPIPE);
    sigaddset(&set, SIGINT);
    posix_spawnattr_setsigdefault(&value, &set);
    posix_spawnattr_setflags(&value, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&value); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  posix_spawnattr_t value{};
};

/// A child that is gone when this is.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (ended()) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool ended() {
    if (pid_ < 0) return true;
    const pid_t done = ::waitpid(pid_, &status_, WNOHANG);
    if (done == 0 || (done < 0 && errno == EINTR)) return false;
    // A host program that ignores SIGCHLD, or waits for every child, has the status and not we:
    // then it stays 0 and the output alone decides.
    pid_ = -1;
    return true;
  }
  int status() const { return status_; }  ///< as waitpid gave it; once it has ended

 private:
  pid_t pid_;
  int status_ = 0;
};

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
  const int status = child.status();
  if (!WIFEXITED(status)) return failed("was ended by a signal");
  if (WEXITSTATUS(status) == 0) return {std::move(text), {}};
  // The protocol's word for "no such login"; every other text of a failure may hold anything.
  if (text.find("credentials not found") != std::string::npos) return failed("has none");
  return failed("failed with exit status " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace

HelperAnswer ask_helper(const std::string& name, const std::string& server,
                        std::chrono::milliseconds time, const std::stop_token& stop) {
  if (!is_name(name)) return failed("is no name of a helper: expected [A-Za-z0-9._-]+");
  if (server.size() > kMaxServerBytes) return failed("is not asked for so long a name");
  std::optional<Pipe> input = make_pipe();
  std::optional<Pipe> output = make_pipe();
  if (!input || !output) return failed("got no pipe: " + message_of(errno));
  // Written before there is a reader: a helper that reads nothing cannot raise SIGPIPE here.
  if (::write(input->write.get(), server.data(), server.size()) !=
      static_cast<ssize_t>(server.size())) {
    return failed("could not be asked: " + message_of(errno));
  }
  input->write = FileDescriptor();

  SpawnActions actions;
  posix_spawn_file_actions_adddup2(&actions.value, input->read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, output->write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions.value, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const SpawnAttributes attributes;
  std::string program = "docker-credential-" + name;
  std::string verb = "get";
  const std::array<char*, 3> arguments{program.data(), verb.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, program.c_str(), &actions.value, &attributes.value,
                                   arguments.data(), environment().block().data());
  if (error == ENOENT) return failed("is not on PATH");
  if (error != 0) return failed("could not be started: " + message_of(error));
  Child child(pid);
  output->write = FileDescriptor();
  return read_answer(output->read.get(), child, time, stop);
}

}  // namespace kiln
