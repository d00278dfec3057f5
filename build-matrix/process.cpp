// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <unistd.h>

#include <system_error>

#include "base/process.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

int run(const std::vector<std::string>& command, const Environment& extra, const Streams& streams,
        std::string* output) {
  // The first definition of a name wins in getenv, so ours come first.
  Environment own = extra;
  std::vector<char*> environment;
  for (std::string& entry : own) environment.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  try {
    Pipe pipe = output != nullptr ? make_pipe() : Pipe{};
    const int end = pipe.write.get();
    Child child(command, environment,
                output != nullptr ? Streams{.out = end, .err = end} : streams);
    pipe.write = FileDescriptor();
    const auto keep = [&](std::string_view piece) { output->append(piece); };
    if (output != nullptr) try_read_pieces(pipe.read.get(), keep);
    child.wait();
    return child.exit_status();
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kBuild, "run " + command.front() + ": " + error.code().message() +
                                       "; is it installed and on PATH?");
  }
}

}  // namespace

Finished run_captured(const std::vector<std::string>& command, const Environment& extra) {
  Finished finished;
  finished.status = run(command, extra, {}, &finished.output);
  return finished;
}

int run_visible(const std::vector<std::string>& command, const Environment& extra, bool to_stderr) {
  return run(command, extra, {.out = to_stderr ? STDERR_FILENO : Streams::kSame}, nullptr);
}

}  // namespace kiln::build
