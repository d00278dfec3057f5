// SPDX-License-Identifier: Apache-2.0
#include "base/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
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

void direct(posix_spawn_file_actions_t& actions, int from, int to) {
  if (from == Streams::kNothing) {
    posix_spawn_file_actions_addopen(&actions, to, "/dev/null", O_RDWR, 0);
  } else if (from != Streams::kSame) {
    posix_spawn_file_actions_adddup2(&actions, from, to);
  }
}

void set_fresh_signals(posix_spawnattr_t& attributes) {
  sigset_t set;
  sigemptyset(&set);
  posix_spawnattr_setsigmask(&attributes, &set);
  sigaddset(&set, SIGPIPE);
  sigaddset(&set, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &set);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

}  // namespace

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno);
  FileDescriptor read(ends[0]);
  FileDescriptor write(ends[1]);
  if (!read.valid() || !write.valid()) fail(errno);
  return {std::move(read), std::move(write)};
}

std::filesystem::path own_program(std::string_view operation) {
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return self;
  throw Error(ErrorCode::kNotFound, std::string(operation) +
                                        ": read /proc/self/exe: " + error.message() +
                                        ", so that it cannot find its own folder. Mount /proc");
}

std::string_view cure_without_proc() {
  const bool is_there = ::access("/proc/self/fd", F_OK) == 0;
  return is_there ? "" : ". There is no /proc: mount it, or set KILN_LOAD_MODE=path";
}

Child::Child(std::vector<std::string> command, const std::vector<char*>& environment,
             const Streams& streams) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  direct(actions, streams.in, STDIN_FILENO);
  direct(actions, streams.out, STDOUT_FILENO);
  direct(actions, streams.err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  set_fresh_signals(attributes);
  const int error = ::posix_spawnp(&pid_, arguments.front(), &actions, &attributes,
                                   arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
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
  rusage used{};
  const pid_t done = ::wait4(pid_, &status_, options, &used);
  if (done == 0 || (done < 0 && errno == EINTR)) return false;
  pid_ = -1;
  for (const timeval& time : {used.ru_utime, used.ru_stime}) {
    cpu_seconds_ += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  }
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
