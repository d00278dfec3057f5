// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/result.hpp"

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>

#include "kiln/error.hpp"

namespace kiln::cli {

void flush_result() {
  errno = 0;
  const bool streamed = static_cast<bool>(std::cout.flush());
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && streamed) return;
  if (errno == EBADF) return;  // whoever closed it meant nothing to be read
  const bool full = errno == ENOSPC || errno == EDQUOT;
  throw Error(
      ErrorCode::kCache,
      "write the result to stdout: " +
          (errno == 0 ? "not all of it was taken" : std::generic_category().message(errno)) +
          (full ? ". Make room where it goes" : ". Check where it goes") + ", and run it again");
}

}  // namespace kiln::cli
