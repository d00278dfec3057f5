// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/check.hpp>

#include <cstdarg>
#include <cstdio>

namespace kiln::sdk {

int32_t fail(kiln_error* error, kiln_status status, const char* format, ...) {
  if (error == nullptr) return status;
  error->status = status;
  const int prefix = snprintf(error->text, sizeof(error->text), "%s@%d ", kIdentity.name,
                              static_cast<int>(kIdentity.version));
  if (prefix < 0 || static_cast<size_t>(prefix) >= sizeof(error->text)) return status;
  const size_t used = static_cast<size_t>(prefix);
  va_list arguments;
  va_start(arguments, format);
  // A result that did not fit is still NUL-terminated; the start of a message says most.
  (void)vsnprintf(error->text + used, sizeof(error->text) - used, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace kiln::sdk
