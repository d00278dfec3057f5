// SPDX-License-Identifier: Apache-2.0
//
// Memo: the kernels of this process, by request: what makes a second get_kernel cost no disk
// access. Before everything else of get_kernel. Safe from several threads at once; a fork waits for
// nothing but a lookup.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kiln/error.hpp"
#include "kiln/kernel.hpp"

namespace kiln {

/// Everything that the answer to a request depends on, as bytes: its fields, and the environment
/// that Kiln reads. One pass over the environment and one allocation; no disk. A field that is
/// added to Request goes in here, unless it cannot change which kernel is meant.
std::string memo_key(std::string_view name, const Request& request);

/// One request's place in the memo: empty while the first caller loads.
template <class Loaded>
struct Entry {
  std::shared_ptr<const Loaded> loaded;
  std::optional<Error> failure;  // for those who waited; the entry itself is gone by then
  // One for each entry: a fork leaves the one that dead threads wait on unusable, and the child
  // drops that entry.
  std::condition_variable done;
};

/// The kernels of this process. Never destroyed: other threads may still ask at exit.
template <class Loaded>
class Memo {
 public:
  /// The memoised value, or `load()`; of concurrent callers of one key, one loads and the others
  /// wait. A failure is everyone's who waited, and is forgotten.
  template <class Load>
  std::shared_ptr<const Loaded> get(const std::string& key, const Load& load) {
    std::shared_ptr<Entry<Loaded>> entry;
    {
      std::unique_lock held(mutex_);
      if (const auto found = entries_.find(key); found != entries_.end()) {
        entry = found->second;
        entry->done.wait(held, [&] { return entry->loaded || entry->failure; });
        if (entry->failure) throw Error(*entry->failure);
        return entry->loaded;
      }
      entry = std::make_shared<Entry<Loaded>>();
      entries_.emplace(key, entry);
    }
    try {
      auto loaded = load();
      const std::scoped_lock held(mutex_);
      entry->loaded = std::move(loaded);
      entry->done.notify_all();
      return entry->loaded;
    } catch (const std::exception& error) {
      const auto* const typed = dynamic_cast<const Error*>(&error);
      const std::scoped_lock held(mutex_);
      // A copy of the text, not a shared exception: each waiter throws its own.
      entry->failure.emplace(typed != nullptr ? typed->code() : ErrorCode::kInternal,
                             std::string(error.what()));
      entries_.erase(key);
      entry->done.notify_all();
      throw;
    }
  }

  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  /// The threads that were loading do not exist in the child: whoever asks next loads anew.
  void after_fork_in_child() {
    std::erase_if(entries_, [](const auto& each) { return !each.second->loaded; });
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Entry<Loaded>>> entries_;
};

template <class Loaded>
Memo<Loaded>& memo() {
  static Memo<Loaded>* const instance = [] {
    auto* const made = new Memo<Loaded>;
    ::pthread_atfork([] { memo<Loaded>().before_fork(); },
                     [] { memo<Loaded>().after_fork_in_parent(); },
                     [] { memo<Loaded>().after_fork_in_child(); });
    return made;
  }();
  return *instance;
}

}  // namespace kiln
