// SPDX-License-Identifier: Apache-2.0
//
// CheckRun: a version's numeric check on this machine, in a process of its own, so that a kernel
// that crashes, hangs or spoils memory ends that process alone. Under `kiln test` and `kiln diff`.
// The process is this program once more, with the verb run-check; it loads the verified library and
// the verified check (kiln/check.h) and writes each case as a line of JSON. For one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "base/posix.hpp"
#include "install/install.hpp"
#include "install/tested_here.hpp"
#include "loader/cli/verbs/kernel_command.hpp"

namespace kiln::cli {

/// What is tested: installed, with the check that its version brings.
struct CheckTarget {
  std::string subject;  ///< "rms-norm@1 cpu-x86-64-v3"
  Spec spec;
  Request request;  ///< pins the variant and the device; fetches nothing
  Installed installed;
  Spec check;  ///< the version whose check is run, its own unless said otherwise
  std::uint64_t bytes_fetched = 0;
};

/// Installs the variant. The settings' "tested" is passed over: that is what is to be found out.
/// Throws what install throws.
CheckTarget find_target(const Request& request, const Spec& spec);

/// Whether its version brings a check for this architecture.
bool brings_check(const CheckTarget& target);

/// Installs the check that its version brings.
void install_check(CheckTarget& target);

/// All cases of one name.
struct CheckGroup {
  std::uint64_t cases = 0;
  std::uint64_t failed = 0;
  double worst = 0;  ///< the largest error
  double bound = 0;  ///< the largest that is allowed
};

enum class CheckEnd { kDone, kCrashed, kOutOfTime, kFailed };

/// What the package wrote in one case; its values lie in CheckRun::values: `count` elements as they
/// are, and then as many doubles that they should be.
struct CheckOutput {
  std::string name;
  std::uint64_t code = 0;  ///< DLPack's, of the dtype
  std::uint64_t bits = 0;
  std::uint64_t count = 0;
};

/// The calls of one op.
struct OpTime {
  std::uint64_t calls = 0;
  double seconds = 0;  ///< of the median call; on a GPU with the wait for it
};

struct CheckRun {
  CheckEnd end = CheckEnd::kDone;
  std::string problem;  ///< how it ended otherwise
  std::uint64_t cases = 0;
  std::uint64_t failed = 0;
  std::map<std::string, CheckGroup> groups = {};
  std::vector<std::string> failures = {};  ///< the first few
  double seconds = 0;
  std::vector<CheckOutput> outputs = {};  ///< where values were asked for
  FileDescriptor values = {};
  std::map<std::string, OpTime> ops = {};

  bool passed() const { return end == CheckEnd::kDone && cases > 0 && failed == 0; }
};

/// What a check may take where nothing else is said.
constexpr std::chrono::seconds check_time(bool full) {
  return full ? std::chrono::hours(1) : std::chrono::minutes(1);
}

struct CheckLimits {
  bool full = false;
  bool values = false;  ///< whether what the package writes, and how long it takes, is wanted
  std::chrono::seconds time = check_time(false);
};

/// Throws kCancelled; what else goes wrong is in the result.
CheckRun run_check(const CheckTarget& target, const CheckLimits& limits,
                   const std::stop_token& stop);

/// The width of a column with the names of its groups; one of more than 48 bytes stands out of it.
int name_column(const CheckRun& run);

/// As a record: one that did not come to its end has a failed case more.
TestRecord record_of(const CheckTarget& target, const CheckRun& run);

/// The verb of the child.
void run_check_verb(KernelCommand& command);

}  // namespace kiln::cli
