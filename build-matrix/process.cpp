// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "kiln/error.hpp"

namespace kiln::build {
namespace {

class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  void duplicate(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

pid_t start(const std::vector<std::string>& command, const Environment& extra,
            const SpawnActions& actions) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // The first definition of a name wins in getenv, so ours come first.
  std::vector<char*> environment;
  environment.reserve(extra.size());
  for (const std::string& entry : extra) environment.push_back(const_cast<char*>(entry.c_str()));
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  pid_t child = -1;
  const int failed = posix_spawnp(&child, command.front().c_str(), actions.get(), nullptr,
                                  arguments.data(), environment.data());
  if (failed != 0) {
    throw Error(ErrorCode::kBuild, "run " + command.front() + ": " + std::strerror(failed) +
                                       "; is it installed and on PATH?");
  }
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error(ErrorCode::kBuild, std::string("wait for a program: ") + std::strerror(errno));
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Finished run_captured(const std::vector<std::string>& command, const Environment& extra) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kBuild, std::string("make a pipe: ") + std::strerror(errno));
  }
  Finished finished;
  pid_t child = -1;
  try {
    SpawnActions actions;
    actions.duplicate(ends[1], STDOUT_FILENO);
    actions.duplicate(ends[1], STDERR_FILENO);
    child = start(command, extra, actions);
  } catch (...) {
    close(ends[0]);
    close(ends[1]);
    throw;
  }
  close(ends[1]);
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t got = read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    finished.output.append(buffer.data(), static_cast<std::size_t>(got));
  }
  close(ends[0]);
  finished.status = wait_for(child);
  return finished;
}

int run_visible(const std::vector<std::string>& command, const Environment& extra, bool to_stderr) {
  SpawnActions actions;
  if (to_stderr) actions.duplicate(STDERR_FILENO, STDOUT_FILENO);
  return wait_for(start(command, extra, actions));
}

}  // namespace kiln::build
