// SPDX-License-Identifier: Apache-2.0
#include "kiln/kernel.hpp"

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "cache.hpp"
#include "fetch.hpp"
#include "install.hpp"
#include "load.hpp"
#include "lock.hpp"
#include "probe.hpp"

namespace kiln {

struct Kernel::Loaded {
  std::string name;
  std::string variant;
  Device device;
  Resolution resolution;
  std::filesystem::path library;
  const kiln_package* package = nullptr;
};

namespace {

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
  std::map<std::string, std::shared_ptr<Entry<Loaded>>> entries_;
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

/// Everything that the answer depends on, as one string. Reads the environment, no disk.
std::string memo_key(std::string_view name, const Request& request) {
  const std::string cache =
      request.cache.empty() ? Cache::default_root().string() : request.cache.string();
  std::string key;
  for (const std::string& part :
       {std::string(name), std::to_string(request.version), to_string(request.device),
        request.variant, std::string(request.allow_jit ? "jit" : "no jit"),
        canonical_registry(request.registry), lockfile_of(request).string(), cache,
        probe_environment()}) {
    key += std::to_string(part.size()) + ":" + part + "\n";
  }
  return key;
}

DLDevice dl_device(Device device) {
  if (device.kind == Device::Kind::kCuda) return {kDLCUDA, device.ordinal};
  return {kDLCPU, 0};
}

/// Device code goes into the context now, so that the first call needs no driver work and can be
/// captured.
void prepare(const kiln_package& package, Device device, const std::string& subject) {
  kiln_error error{};
  const std::int32_t status = package.prepare(dl_device(device), &error);
  if (status == KILN_OK) return;
  error.text[sizeof(error.text) - 1] = '\0';
  throw Error(ErrorCode::kDevice, "prepare " + subject + " on " + to_string(device) + ": " +
                                      (error.text[0] != '\0' ? error.text : "no reason given"));
}

const kiln_op* op_at(const kiln_package& package, std::uint32_t position) {
  const auto* const first = reinterpret_cast<const char*>(package.ops);
  return reinterpret_cast<const kiln_op*>(first + std::size_t{position} * package.op_stride);
}

}  // namespace

Kernel get_kernel(std::string_view name, const Request& request) {
  const auto load = [&] {
    Installed installed = install(name, request);
    const std::string subject = std::string(name) + "@" + std::to_string(installed.config.version) +
                                " " + installed.variant.id;
    const kiln_package& package =
        load_library(installed.library, installed.config, subject, std::move(installed.lease));
    const Device device = installed.selected.resolution.device;
    prepare(package, device, subject);
    auto loaded = std::make_shared<Kernel::Loaded>();
    loaded->name = std::string(name);
    loaded->variant = installed.variant.id;
    loaded->device = device;
    loaded->resolution = std::move(installed.selected.resolution);
    loaded->library = std::move(installed.library);
    loaded->package = &package;
    return std::shared_ptr<const Kernel::Loaded>(std::move(loaded));
  };
  // A refresh is asked for because the world may have changed: it is never answered from memory.
  if (request.refresh) return Kernel(load());
  return Kernel(memo<Kernel::Loaded>().get(memo_key(name, request), load));
}

std::string_view Kernel::name() const {
  return loaded_->name;
}

int Kernel::version() const {
  return loaded_->package->version;
}

std::string_view Kernel::variant() const {
  return loaded_->variant;
}

Device Kernel::device() const {
  return loaded_->device;
}

const Resolution& Kernel::resolution() const {
  return loaded_->resolution;
}

const std::filesystem::path& Kernel::library() const {
  return loaded_->library;
}

const kiln_package& Kernel::package() const {
  return *loaded_->package;
}

Op Kernel::op(std::string_view name) const {
  std::string list;
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op* const op = op_at(package(), i);
    if (op->name == name) return Op(op);
    list += (list.empty() ? "" : ", ") + std::string(op->name);
  }
  throw Error(ErrorCode::kNotFound, "find op '" + std::string(name) + "' in " + loaded_->name +
                                        "@" + std::to_string(version()) +
                                        ": there is no such op; it has: " + list);
}

}  // namespace kiln
