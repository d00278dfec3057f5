// SPDX-License-Identifier: Apache-2.0
#include "install/in_observer.hpp"

#include <string>
#include <utility>

#include "kiln/error.hpp"

namespace kiln {
namespace {

thread_local int depth = 0;

struct Depth {
  Depth() { ++depth; }
  ~Depth() { --depth; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
};

}  // namespace

Observer marked_observer(Observer observer) {
  if (!observer) return {};
  return [observer = std::move(observer)](const Event& event) {
    const Depth inside;
    observer(event);
  };
}

void check_not_in_observer(std::string_view name) {
  if (depth == 0) return;
  throw Error(ErrorCode::kUsage,
              "get kernel " + std::string(name) +
                  ": asked for from within on_event, where it would wait for the install that "
                  "calls on_event. Ask once that get_kernel has returned");
}

}  // namespace kiln
