// SPDX-License-Identifier: Apache-2.0
#include "settings/environment.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

namespace kiln {
namespace {

// "KILN_" covers all of Kiln's own. The others: the default cache and settings, and what the probe
// of the GPUs follows.
constexpr std::array<std::string_view, 6> kDeciding = {
    "KILN_", "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=",
    "HOME=", "XDG_CACHE_HOME=",       "XDG_CONFIG_HOME="};

bool is_deciding(std::string_view variable) {
  return std::any_of(kDeciding.begin(), kDeciding.end(),
                     [&](std::string_view start) { return variable.starts_with(start); });
}

/// Never destroyed: other threads may still ask at exit.
std::atomic<const Environment*> copied = nullptr;

}  // namespace

bool is_secure_execution() {
  return ::getauxval(AT_SECURE) != 0;
}

Environment Environment::read(bool secure) {
  Environment read;
  if (secure) return read;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    read.variables_.emplace_back(*each);
  }
  std::sort(read.variables_.begin(), read.variables_.end());
  for (const std::string& variable : read.variables_) {
    if (!is_deciding(variable)) continue;
    read.deciding_ += variable;
    read.deciding_ += '\0';
  }
  return read;
}

const char* Environment::get(std::string_view name) const {
  for (const std::string& variable : variables_) {
    if (variable.size() > name.size() && variable[name.size()] == '=' &&
        variable.starts_with(name)) {
      return variable.c_str() + name.size() + 1;
    }
  }
  return nullptr;
}

std::string_view Environment::text(std::string_view name) const {
  const char* const value = get(name);
  return value != nullptr ? value : std::string_view();
}

std::vector<char*> Environment::block() const {
  std::vector<char*> block;
  block.reserve(variables_.size() + 1);
  for (const std::string& variable : variables_) {
    block.push_back(const_cast<char*>(variable.c_str()));  // posix_spawn's type; it reads only
  }
  block.push_back(nullptr);
  return block;
}

const Environment& environment() {
  if (const Environment* const there = copied.load(std::memory_order_acquire)) return *there;
  auto read = std::make_unique<const Environment>(Environment::read(is_secure_execution()));
  const Environment* first = nullptr;  // of several threads that read at once, one's copy stays
  if (!copied.compare_exchange_strong(first, read.get(), std::memory_order_acq_rel)) return *first;
  return *read.release();
}

void read_environment_again() {
  const std::unique_ptr<const Environment> old(
      copied.exchange(new Environment(Environment::read(is_secure_execution()))));
}

}  // namespace kiln
