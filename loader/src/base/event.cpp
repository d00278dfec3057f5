// SPDX-License-Identifier: Apache-2.0
#include "kiln/event.hpp"

namespace kiln {

std::string_view to_string(Event::Stage stage) {
  switch (stage) {
    case Event::Stage::kIndex:
      return "index";
    case Event::Stage::kManifest:
      return "manifest";
    case Event::Stage::kConfig:
      return "config";
    case Event::Stage::kLayer:
      return "layer";
    case Event::Stage::kUnpack:
      return "unpack";
    case Event::Stage::kRetry:
      return "retry";
    case Event::Stage::kWait:
      return "wait";
    case Event::Stage::kFallback:
      return "fallback";
  }
  return "?";
}

}  // namespace kiln
