// SPDX-License-Identifier: Apache-2.0
//
// What a host program may do to itself around get_kernel: small limits, closed descriptors, a
// cancelled thread. Each in a child, since it lasts as long as the process does.
#include <doctest/doctest.h>
#include <link.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "check_add.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

constexpr int kKernel = 0;
constexpr int kOtherError = 99;

/// How a child that does this ends: 0, the code of its kiln::Error, or less than 0 for a signal.
template <class Action>
int end_of(const Action& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    int code = kKernel;
    try {
      action();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    } catch (...) {
      code = kOtherError;
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void expect(bool holds) {
  if (!holds) throw std::logic_error("otherwise than expected");
}

struct Sample {
  Sample() {
    published.publish({cpu_draft(sample_library())});
    published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
  }
  Request version(int number) const {
    return {.version = number,
            .device = Device::cpu(),
            .registry = published.root().string(),
            .cache = scratch / "cache"};
  }
  Scratch scratch;
  Published published{scratch / "registry"};
};

TEST_CASE("host program: beyond RLIMIT_FSIZE a load is an error, and no signal ends the process") {
  for (const bool warm : {false, true}) {
    CAPTURE(warm);
    const Sample sample;
    if (warm) install("sample", sample.version(1));
    const int end = end_of([&] {
      sigset_t before{}, after{}, pending{};
      ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
      const rlimit limit{4096, 4096};  // less than the library and its copy in memory
      expect(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
      const Error error = error_of([&] { get_kernel("sample", sample.version(1)); });
      ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
      ::sigpending(&pending);
      expect(::sigismember(&before, SIGXFSZ) == 0 && ::sigismember(&after, SIGXFSZ) == 0);
      expect(::sigismember(&pending, SIGXFSZ) == 0);
      throw error;
    });
    CHECK(end == static_cast<int>(ErrorCode::kCache));
    CHECK(get_kernel("sample", sample.version(1)).version() == 1);
  }
}

TEST_CASE("host program: all descriptors closed between two loads, and each is its own library") {
  const Sample sample;
  const int end = end_of([&] {
    const Kernel first = get_kernel("sample", sample.version(1));
    ::close_range(3, ~0U, 0);
    const Kernel second = get_kernel("sample", sample.version(2));
    ::close_range(3, ~0U, 0);
    const Kernel again = get_kernel("sample", sample.version(1));
    expect(first.version() == 1 && second.version() == 2);
    expect(&again.package() == &first.package());
    check_add(first);
    check_add(second);
  });
  CHECK(end == kKernel);
}

TEST_CASE("host program: without standard streams, what it prints lands in no file of Kiln") {
  const std::string printed = "what the host prints";
  for (const bool http : {false, true}) {
    CAPTURE(http);
    const Sample sample;
    const std::string report = (sample.scratch / "report").string();
    const int end = end_of([&] {
      const Server server(sample.published.root());
      for (int fd : {0, 1, 2}) ::close(fd);
      Request request = sample.version(1);
      if (http) request.registry = server.url();
      const auto print = [&] {
        for (int fd : {0, 1, 2}) {
          struct stat status {};
          if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
            write_file(report, "descriptor " + std::to_string(fd) + " is a file");
          }
          if (::fstat(fd, &status) != 0 || S_ISREG(status.st_mode)) {
            static_cast<void>(!::write(fd, printed.data(), printed.size()));
          }
        }
      };
      request.on_event = [&](const Event&) { print(); };
      const Kernel kernel = get_kernel("sample", request);
      print();
      request.version = 2;
      get_kernel("sample", request);
      print();
    });
    CHECK(end == kKernel);
    CHECK_FALSE(std::filesystem::exists(report));
    for (const CheckedFile& file : verify_installed(Cache(sample.version(1).cache))) {
      CHECK(file.problem.empty());
    }
    for (const auto& each :
         std::filesystem::recursive_directory_iterator(sample.scratch / "cache")) {
      if (!each.is_regular_file()) continue;
      CAPTURE(each.path().string());
      CHECK(read_file(each.path()).find(printed) == std::string::npos);
    }
  }
}

TEST_CASE("host program: pthread_cancel waits for get_kernel, and leaves no lock behind") {
  const Sample sample;
  const int end = end_of([&] {
    std::atomic<bool> begun = false;
    std::atomic<bool> go_on = false;
    std::atomic<bool> returned = false;
    Request request = sample.version(1);
    request.on_event = [&](const Event&) {
      begun = true;
      while (!go_on) ::usleep(1000);  // a point of cancellation
    };
    std::thread loading([&] {
      get_kernel("sample", request);
      returned = true;
      for (;;) ::pause();  // ends here
    });
    while (!begun) std::this_thread::yield();
    expect(::pthread_cancel(loading.native_handle()) == 0);
    go_on = true;
    loading.join();
    expect(returned);
    expect(get_kernel("sample", sample.version(1)).version() == 1);
    expect(get_kernel("sample", sample.version(2)).version() == 2);
    expect(Cache(request.cache).use_alone().held());
  });
  CHECK(end == kKernel);
}

/// How many libraries this process has ever opened.
unsigned long long opened_libraries() {
  unsigned long long opened = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* count) {
        *static_cast<unsigned long long*>(count) = info->dlpi_adds;
        return 1;
      },
      &opened);
  return opened;
}

TEST_CASE("host program: the environment is read once: what is set after a call has no effect") {
  const Sample sample;
  const int end = end_of([&] {
    get_kernel("sample", sample.version(1));
    for (const char* name : {"KILN_OFFLINE", "KILN_LOAD_MODE", "KILN_LOCK", "KILN_CONFIG", "HOME",
                             "KILN_OVERRIDE_CUDA", "KILN_UNSIGNED", "KILN_REGISTRY"}) {
      ::setenv(name, "/nowhere", 1);
    }
    expect(get_kernel("sample", sample.version(2)).version() == 2);
  });
  CHECK(end == kKernel);
}

TEST_CASE("host program: a library that an index names is looked for, and never run") {
  const std::string name = "libBrokenLocale.so.1";  // of glibc itself, and used by nobody
  Scratch scratch;
  Published published(scratch / "registry");
  Draft draft = cpu_draft(sample_library());
  draft.variant.needs.libraries = {name};
  draft.config.needs.libraries = {name};
  published.publish({draft});
  const auto before = opened_libraries();
  const Kernel kernel = get_kernel("sample", {.version = 1,
                                              .device = Device::cpu(),
                                              .registry = published.root().string(),
                                              .cache = scratch / "cache"});
  CHECK(kernel.version() == 1);             // it was found
  CHECK(opened_libraries() == before + 1);  // the package's own
}

/// The sample library under another soname of as many bytes, or fewer.
std::string renamed(std::string soname) {
  const std::string before = "libsample.so";
  REQUIRE(soname.size() <= before.size());
  soname.resize(before.size(), '\0');
  std::string library = sample_library();
  const std::size_t at = library.find(before);
  REQUIRE(at != std::string::npos);
  return library.replace(at, before.size(), soname);
}

TEST_CASE("host program: a package's library may have the soname of one that is loaded already") {
  for (const char* soname : {"libc.so.6", "libm.so.6", "libasan.so.8", "libcurl.so.4", ""}) {
    CAPTURE(soname);
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(renamed(soname))});
    const Kernel kernel = get_kernel("sample", {.version = 1,
                                                .device = Device::cpu(),
                                                .registry = published.root().string(),
                                                .cache = scratch / "cache"});
    CHECK(kernel.version() == 1);
    check_add(kernel);
  }
}

}  // namespace
}  // namespace kiln::test
