// SPDX-License-Identifier: Apache-2.0
//
// Process: another program, started without a shell and without a handler of any signal, as a
// library may do it. Below the credential helper and the build. The caller decides how long
// it may take and what its output may be. What the system refuses is a std::system_error.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.hpp"

namespace kiln {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// Neither end is one of the three standard streams, which a host program may have closed.
Pipe make_pipe();

/// What the program gets as its standard streams: a descriptor of ours, or one of these.
struct Streams {
  static constexpr int kSame = -1;     ///< what we have
  static constexpr int kNothing = -2;  ///< /dev/null
  int in = kSame;
  int out = kSame;
  int err = kSame;
};

/// The file of this program. kNotFound, "<operation>: …", where /proc, which says it, is not there.
std::filesystem::path own_program(std::string_view operation);

/// What to do where a library's copy in memory, /proc/self/fd/N, does not open; empty: /proc is
/// there.
std::string_view cure_without_proc();

/// Gone when this is. For one thread at a time.
class Child {
 public:
  /// command[0] is looked up on PATH unless it has a '/'. `environment` ends with a null. The
  /// program has the signals of a fresh one, whatever this thread blocks or ignores.
  Child(std::vector<std::string> command, const std::vector<char*>& environment,
        const Streams& streams);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool ended();  ///< does not wait
  void wait();

  /// Once it has ended. 0 where somebody else in this process took the status: a host that ignores
  /// SIGCHLD or waits for every child.
  bool was_killed() const;
  int exit_status() const;  ///< as a shell has it: 128 and the signal's number if one ended it
  double cpu_seconds() const { return cpu_seconds_; }  ///< its own and that of what it waited for

 private:
  bool try_wait(int options);

  pid_t pid_ = -1;
  int status_ = 0;
  double cpu_seconds_ = 0;
};

}  // namespace kiln
