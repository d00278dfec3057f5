// SPDX-License-Identifier: Apache-2.0
//
// Memo: the kernels of this process, by request: what makes a second get_kernel cost no disk
// access. Before everything else of get_kernel. Only successes are kept: whoever waited for a load
// that failed loads with its own request, and so gets its own error. Safe from several threads at
// once; a fork waits for nothing but a lookup.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/fork.hpp"
#include "http/retry.hpp"

namespace kiln {

struct Request;  // kiln/request.hpp

/// Everything that the answer to a request depends on, as bytes: its fields and the environment.
/// No disk. A field that is added to Request goes in here, unless it cannot change which kernel is
/// meant.
std::string memo_key(std::string_view name, const Request& request);

/// The kernels of this process. Never destroyed: other threads may still ask at exit.
template <class Loaded>
class Memo final : public AroundFork {
 public:
  using Value = std::shared_ptr<const Loaded>;

  /// The memoised value, or `load()`; of concurrent callers of one key, one loads and the others
  /// wait. Throws what its own `load` throws, whatever that is, and kCancelled once `stop` asks.
  template <class Load>
  Value get(const std::string& key, const std::stop_token& stop, const Load& load) {
    std::shared_ptr<Entry> ours;
    {
      std::unique_lock held(mutex_);
      while (const auto entry = find(key)) {
        entry->done.wait(held, stop, [&] { return entry->ended; });
        if (entry->loaded) return entry->loaded;
        if (stop.stop_requested()) fail_cancelled("wait for another thread's get_kernel");
      }
      ours = std::make_shared<Entry>();
      entries_.emplace(key, ours);
    }
    Ending ending{*this, key, *ours, nullptr};
    ending.loaded = load();
    return ending.loaded;
  }

  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() override { mutex_.unlock(); }
  /// The threads that were loading do not exist in the child: whoever asks next loads anew. Their
  /// entries are not destroyed, since dead threads still refer to them.
  void after_fork_in_child() override {
    std::erase_if(entries_, [](const auto& each) { return !each.second->loaded; });
    mutex_.unlock();
  }

 private:
  /// One request's place: empty while the first caller loads.
  struct Entry {
    Value loaded;
    bool ended = false;
    // One for each entry: a fork leaves the one that dead threads wait on unusable.
    std::condition_variable_any done;
  };

  /// However a load ends, its waiters go on. In one step: the child of a fork must find no entry
  /// that has its value and a loader that it still waits for.
  struct Ending {
    Memo& memo;
    const std::string& key;
    Entry& entry;
    Value loaded;
    ~Ending() {
      const std::scoped_lock held(memo.mutex_);
      entry.loaded = loaded;
      entry.ended = true;
      if (!entry.loaded) memo.entries_.erase(key);
      entry.done.notify_all();
    }
  };

  std::shared_ptr<Entry> find(const std::string& key) const {
    const auto found = entries_.find(key);
    return found != entries_.end() ? found->second : nullptr;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
};

template <class Loaded>
Memo<Loaded>& memo() {
  const NoFork whole;
  static Memo<Loaded>* const instance = [] {
    auto* const made = new Memo<Loaded>;
    at_fork(*made);
    return made;
  }();
  return *instance;
}

}  // namespace kiln
