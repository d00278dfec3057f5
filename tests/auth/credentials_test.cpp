// SPDX-License-Identifier: Apache-2.0
//
// Credentials: base64 as it stands in files of logins, and a helper program that never answers. Who
// gets which login is asked of the real command, in auth_test.py.
#include "http/credentials.hpp"

#include <doctest/doctest.h>

#include <thread>

#include "base/base64.hpp"
#include "kiln/error.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

using std::chrono::milliseconds;

void write_helper(const Scratch& scratch, const std::string& name, const std::string& script) {
  const std::filesystem::path path = scratch / ("docker-credential-" + name);
  write_file(path, "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST_CASE("credentials: base64 is read in its one strict form") {
  for (const std::string plain : {"", "u", "us", "use", "user:pass", "user:p\xc3\xa4ss:\x01"}) {
    CHECK(decode_base64(encode_base64(plain)) == plain);
  }
  CHECK(encode_base64("user:pass") == "dXNlcjpwYXNz");
  for (const char* broken : {"d", "dX", "dXN", "dXNl\n", " dXNl", "d===", "====", "dX=l",
                             "dXNl====", "dXNlcjpwYXN-", "dXNlcjpwYXN_", "d\xc3\xa4NlcjpwYXNz"}) {
    CAPTURE(broken);
    CHECK_FALSE(decode_base64(broken));
  }
}

TEST_CASE("credentials: a helper is bounded in time and output, and may be stopped") {
  const Scratch scratch;
  write_helper(scratch, "slow", "exec sleep 60");
  write_helper(scratch, "closed", "exec >&-; exec sleep 60");
  write_helper(scratch, "endless", "exec yes");
  write_helper(scratch, "killed", "kill -9 $$");
  write_helper(scratch, "daemon", "sleep 60 & echo '{\"Secret\": \"x\"}'");
  write_helper(scratch, "late", "(sleep 0.1; echo '2}') & printf '{\"a\": '");
  write_helper(scratch, "broken", "sleep 60 & exit 7");
  write_helper(scratch, "echo", "cat; test \"$1\" = get; test $# = 1");
  const Environment path("PATH", (scratch / "").string() + ":/usr/bin:/bin");
  for (const char* name : {"slow", "closed"}) {
    CHECK(ask_helper(name, "example.org", milliseconds(300), {}).failure ==
          "took over 300 ms and was ended");
  }
  const auto ask = [](const std::string& name) {
    return ask_helper(name, "example.org", std::chrono::seconds(30), {});
  };
  CHECK(ask("endless").failure == "answered with more than 65536 bytes");
  CHECK(ask("killed").failure == "was ended by a signal");
  CHECK(ask("absent").failure == "is not on PATH");
  CHECK(ask("../echo").failure == "is not the name of a helper: expected [A-Za-z0-9._-]+");
  CHECK(ask("").failure == "is not the name of a helper: expected [A-Za-z0-9._-]+");
  CHECK(ask("echo").output == "example.org");
  CHECK(ask("daemon").output == "{\"Secret\": \"x\"}\n");
  CHECK(ask("late").output == "{\"a\": 2}\n");
  CHECK(ask("broken").failure == "failed with exit status 7");

  std::stop_source source;
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    source.request_stop();
  });
  try {
    ask_helper("slow", "example.org", std::chrono::seconds(30), source.get_token());
    FAIL("the helper was waited for");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCancelled);
  }
}

}  // namespace
}  // namespace kiln::test
