// SPDX-License-Identifier: Apache-2.0
//
// Text: pieces of an error message put together in a fixed buffer. What does not fit is cut off; a
// message is never longer than kiln_error holds anyway.
#pragma once

#include <cstdarg>
#include <cstdio>

#include <kiln/sdk/types.hpp>

namespace kiln::sdk {

class Text {
 public:
  __attribute__((format(printf, 2, 3))) Text& add(const char* format, ...) {
    const size_t room = sizeof(buffer_) - used_;
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(buffer_ + used_, room, format, arguments);
    va_end(arguments);
    if (written > 0) {
      used_ += static_cast<size_t>(written) < room ? static_cast<size_t>(written) : room - 1;
    }
    return *this;
  }
  // "a", "a or b", "a, b or c": the word before item `index` of `count`.
  Text& separator(int index, int count) {
    if (index > 0) add("%s", index + 1 == count ? " or " : ", ");
    return *this;
  }
  // "[8192, 767]"
  Text& numbers(const int64_t* values, int count) {
    add("[");
    for (int i = 0; i < count; ++i) {
      add("%s%lld", i > 0 ? ", " : "", static_cast<long long>(values[i]));
    }
    return add("]");
  }
  const char* c_str() const { return buffer_; }

 private:
  char buffer_[sizeof(kiln_error::text)] = {};
  size_t used_ = 0;
};

}  // namespace kiln::sdk
