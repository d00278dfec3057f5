// SPDX-License-Identifier: Apache-2.0
#include "base/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace kiln {
namespace {

[[noreturn]] void fail(int error) {
  throw std::system_error(error, std::generic_category());
}

class Actions {
 public:
  explicit Actions(const Streams& streams) {
    posix_spawn_file_actions_init(&value_);
    set(streams.in, STDIN_FILENO);
    set(streams.out, STDOUT_FILENO);
    set(streams.err, STDERR_FILENO);
  }
  ~Actions() { posix_spawn_file_actions_destroy(&value_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &value_; }

 private:
  void set(int from, int to) {
    if (from == Streams::kNothing) {
      posix_spawn_file_actions_addopen(&value_, to, "/dev/null", O_RDWR, 0);
    } else if (from != Streams::kSame) {
      posix_spawn_file_actions_adddup2(&value_, from, to);
    }
  }
  posix_spawn_file_actions_t value_{};
};

class FreshSignals {
 public:
  FreshSignals() {
    posix_spawnattr_init(&value_);
    sigset_t set;
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&value_, &set);
    sigaddset(&set, SIGPIPE);
    sigaddset(&set, SIGINT);
    posix_spawnattr_setsigdefault(&value_, &set);
    posix_spawnattr_setflags(&value_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~FreshSignals() { posix_spawnattr_destroy(&value_); }
  FreshSignals(const FreshSignals&) = delete;
  FreshSignals& operator=(const FreshSignals&) = delete;
  const posix_spawnattr_t* get() const { return &value_; }

 private:
  posix_spawnattr_t value_{};
};

}  // namespace

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno);
  FileDescriptor read(ends[0]);
  FileDescriptor write(ends[1]);
  if (!read.valid() || !write.valid()) fail(errno);
  return {std::move(read), std::move(write)};
}

Child::Child(std::vector<std::string> command, const std::vector<char*>& environment,
             const Streams& streams) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Actions actions(streams);
  const FreshSignals signals;
  const int error = ::posix_spawnp(&pid_, arguments.front(), actions.get(), signals.get(),
                                   arguments.data(), environment.data());
  if (error != 0) {
    pid_ = -1;
    fail(error);
  }
}

Child::~Child() {
  if (ended()) return;
  ::kill(pid_, SIGKILL);
  wait();
}

bool Child::try_wait(int options) {
  if (pid_ < 0) return true;
  const pid_t done = ::waitpid(pid_, &status_, options);
  if (done == 0 || (done < 0 && errno == EINTR)) return false;
  pid_ = -1;
  return true;
}

bool Child::ended() {
  return try_wait(WNOHANG);
}

void Child::wait() {
  while (!try_wait(0)) continue;
}

bool Child::was_killed() const {
  return WIFSIGNALED(status_);
}

int Child::exit_status() const {
  return was_killed() ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

}  // namespace kiln
