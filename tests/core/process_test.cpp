// SPDX-License-Identifier: Apache-2.0
#include "base/process.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

namespace kiln {
namespace {

std::vector<char*> environment_with(std::string& variable) {
  std::vector<char*> block{variable.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) block.push_back(*entry);
  block.push_back(nullptr);
  return block;
}

/// What the shell script writes to its standard output; its exit status follows.
std::string output_of(const std::string& script, const std::string& input = "") {
  std::string variable = "KILN_TEST_WORD=word";
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  if (try_write_all(in.write.get(), input) != 0) return "the input was not taken";
  in.write = FileDescriptor();
  Child child({"sh", "-c", script}, environment_with(variable),
              {.in = in.read.get(), .out = out.write.get(), .err = Streams::kNothing});
  out.write = FileDescriptor();
  std::string text;
  try_read_pieces(out.read.get(), [&](std::string_view piece) { text += piece; });
  child.wait();
  return text + std::to_string(child.exit_status()) + (child.was_killed() ? " killed" : "");
}

TEST_CASE("process: streams, environment and status arrive") {
  CHECK(output_of("cat; exit 3", "given") == "given3");
  CHECK(output_of("printf $KILN_TEST_WORD") == "word0");
  CHECK(output_of("echo lost >&2") == "0");
  CHECK(output_of("kill -TERM $$") == "143 killed");
}

TEST_CASE("process: a program that is not there is an error with its number") {
  std::string variable = "A=b";
  // Not the caller's, which may have a folder that this user may not look into.
  const std::string path = std::getenv("PATH");
  REQUIRE(::setenv("PATH", "/usr/bin:/bin", 1) == 0);
  try {
    const Child child({"kiln-no-such-program"}, environment_with(variable), {});
    FAIL("it started");
  } catch (const std::system_error& error) {
    CHECK(error.code().value() == ENOENT);
  }
  ::setenv("PATH", path.c_str(), 1);
}

TEST_CASE("process: a child does not outlive its object, and has fresh signals") {
  std::string variable = "A=b";
  const auto ignored = ::signal(SIGPIPE, SIG_IGN);
  CHECK(output_of("kill -PIPE $$; exit 1") == "141 killed");
  ::signal(SIGPIPE, ignored);
  const Pipe out = make_pipe();
  { const Child child({"sleep", "60"}, environment_with(variable), {.out = out.write.get()}); }
  CHECK(::waitpid(-1, nullptr, WNOHANG) < 0);  // no child is left, alive or not
}

TEST_CASE("process: a host program without standard streams keeps them out of the pipes") {
  const pid_t host = ::fork();
  if (host == 0) {
    for (const int stream : {0, 1, 2}) ::close(stream);
    ::_exit(output_of("cat", "given") == "given0" ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(host, &status, 0) == host);
  CHECK(status == 0);
}

}  // namespace
}  // namespace kiln
