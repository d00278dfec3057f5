// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/base/process.hpp"

#include <unistd.h>

#include <system_error>

#include "base/process.hpp"
#include "kiln/error.hpp"

namespace kiln::build {

Finished run_captured(const std::vector<std::string>& command,
                      std::optional<std::vector<std::string>> environment) {
  std::vector<char*> words;
  if (environment) {
    for (std::string& entry : *environment) words.push_back(entry.data());
  } else {
    for (char** entry = environ; *entry != nullptr; ++entry) words.push_back(*entry);
  }
  words.push_back(nullptr);
  Finished finished;
  try {
    Pipe pipe = make_pipe();
    const int end = pipe.write.get();
    Child child(command, words, {.in = Streams::kNothing, .out = end, .err = end});
    pipe.write = FileDescriptor();
    const auto keep = [&](std::string_view piece) { finished.output.append(piece); };
    try_read_pieces(pipe.read.get(), keep);
    child.wait();
    finished.status = child.exit_status();
    finished.cpu_seconds = child.cpu_seconds();
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kBuild, "run " + command.front() + ": " + error.code().message() +
                                       "; is it installed and on PATH?");
  }
  return finished;
}

}  // namespace kiln::build
