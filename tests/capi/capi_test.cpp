// SPDX-License-Identifier: Apache-2.0
//
// The C API through a C program of its own (user.c): here is what it asks for. kiln.h is included
// as C++ too, which must compile.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <kiln/kiln.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "capi_paths.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

int user(const std::string& name, const std::string& registry, const Scratch& scratch) {
  const std::string command =
      std::string(paths::kUser) + " " + name + " " + registry + " " + (scratch / "cache").string();
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  REQUIRE(::pclose(pipe) == 0);
  return text;
}

TEST_CASE("capi: a C program gets a kernel, runs it, and reads errors, events and decisions") {
  for (const char* name : {"run", "errors", "sizes", "events", "released"}) {
    CAPTURE(name);
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    CHECK(user(name, published.root().string(), scratch) == 0);
  }
}

TEST_CASE("capi: a thread that is cancelled ends after its call, whichever that is") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  CHECK(user("ended", published.root().string(), scratch) == 0);
}

TEST_CASE("capi: a callback that ends its thread ends the process, and holds up no other") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const int end = user("exits", published.root().string(), scratch);
  CHECK(end == 128 + SIGABRT);
  CHECK(user("run", published.root().string(), scratch) == 0);
}

TEST_CASE("capi: fallbacks, a deny list, every GPU") {
  Scratch scratch;
  const Environment sm("KILN_OVERRIDE_SM", "7.5,8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library()), gpu_draft(sample_library("gpu"))});
  CHECK(user("choice", published.root().string(), scratch) == 0);
}

TEST_CASE("capi: a text that is too long keeps its beginning and its end") {
  Scratch scratch;
  const Environment sm("KILN_OVERRIDE_SM", "7.5");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library()), gpu_draft(sample_library("gpu"))});
  CHECK(user("long-text", published.root().string(), scratch) == 0);
}

TEST_CASE("capi: a request to stop ends a download from a server that never answers") {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener, 1) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const Scratch scratch;
  const std::string url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  CHECK(user("cancelled", url, scratch) == 0);
  ::close(listener);
}

TEST_CASE("capi: what a callback of C++ throws is an error, and passes through no C function") {
  const Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  void* const library = ::dlopen(paths::kLibrary, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto get =
      reinterpret_cast<decltype(&kiln_get_kernel)>(::dlsym(library, "kiln_get_kernel"));
  const std::string registry = published.root().string();
  const std::string cache = (scratch / "cache").string();
  kiln_request request{};
  request.struct_size = sizeof request;
  request.version = 1;
  request.device_kind = KILN_DEVICE_CPU;
  request.registry = registry.c_str();
  request.cache = cache.c_str();
  request.on_event = [](const kiln_event*, void*) { throw 7; };
  kiln_kernel* kernel = nullptr;
  kiln_error error{};
  CHECK(get("sample", &request, &kernel, &error) == KILN_E_INTERNAL);
  CHECK(std::string(error.text) == "the event callback threw something");
  CHECK(kernel == nullptr);
  request.on_event = nullptr;
  CHECK(get("sample", &request, &kernel, &error) == KILN_SUCCESS);
  reinterpret_cast<decltype(&kiln_release_kernel)>(::dlsym(library, "kiln_release_kernel"))(kernel);
}

TEST_CASE("capi: libkiln.so shows the functions of kiln.h and nothing else") {
  const std::string symbols =
      output_of(std::string("nm -D --defined-only --format=posix ") + paths::kLibrary);
  const std::string header = read_file(paths::kHeader);
  int functions = 0;
  for (std::size_t at = 0; at < symbols.size();) {
    const std::size_t end = symbols.find('\n', at);
    const std::string name = symbols.substr(at, symbols.find_first_of("@ ", at) - at);
    at = end + 1;
    if (name == "KILN_0") continue;
    CAPTURE(name);
    ++functions;
    CHECK(name.starts_with("kiln_"));
    CHECK(header.find(name + "(") != std::string::npos);
  }
  int declared = 0;
  for (std::size_t at = 0; (at = header.find("\nKILN_EXPORT ", at)) != std::string::npos; ++at) {
    ++declared;
  }
  CHECK(functions == declared);
}

}  // namespace
}  // namespace kiln::test
