// SPDX-License-Identifier: Apache-2.0
//
// Limits: how long and how often a registry is asked. Settings fill them; http keeps to them. A
// value.
#pragma once

#include <chrono>

namespace kiln {

struct Limits {
  int tries = 5;                           ///< of one document or blob without a new byte
  std::chrono::seconds connect{10};        ///< until a connection stands
  std::chrono::seconds stall{30};          ///< below 100 B/s for so long: the try has failed
  std::chrono::seconds deadline{600};      ///< all tries and waits of one document together; a
                                           ///< blob gets a second more for each 64 KiB
  std::chrono::milliseconds backoff{500};  ///< most before the second try; doubles with each
  bool operator==(const Limits&) const = default;
};

}  // namespace kiln
