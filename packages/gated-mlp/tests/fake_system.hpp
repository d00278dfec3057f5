// SPDX-License-Identifier: Apache-2.0
//
// Fake system: how many CPUs there are, what the control groups grant and how many threads can be
// made, as a test says. Its functions stand before pthread_create, sched_getaffinity, clock_gettime
// and open: in a test by the linker's --wrap, in a program that loads a package because it defines
// them itself.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>

namespace gated_mlp_test {

/// Stands in for the system while it lives; one at a time, each a second after the one before it.
class FakeSystem {
 public:
  explicit FakeSystem(int cpus_in_mask);
  ~FakeSystem();
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  /// A file under /proc or /sys; others there do not exist.
  void write(const std::string& path, const std::string& text) const;
  const std::filesystem::path& root() const { return root_; }
  /// Moves every clock on, for good.
  void wait(int milliseconds) const;

  int cpus;
  int most_created = 1 << 20;    ///< pthread_create fails after so many
  std::atomic<int> created = 0;  ///< calls of pthread_create, failed ones too
  std::atomic<int> asked = 0;    ///< for the mask or a file

 private:
  std::filesystem::path root_;
};

}  // namespace gated_mlp_test
