// SPDX-License-Identifier: Apache-2.0
#include "install/lock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/posix.hpp"
#include "documents/names.hpp"
#include "install/find_index.hpp"
#include "install/pull.hpp"
#include "install/select.hpp"
#include "kiln/error.hpp"
#include "store/fetch.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_held(std::string_view subject, const std::string& what) {
  throw Error(ErrorCode::kLock, "lock " + std::string(subject) + ": " + what);
}

std::string names_in(const Lockfile& lock) {
  std::string list;
  for (const auto& [name, kernel] : lock) {
    list += (list.empty() ? "" : ", ") + label(name, kernel.version);
  }
  return list.empty() ? "nothing" : list;
}

bool names_registry(const Request& request) {
  const char* const value = std::getenv("KILN_REGISTRY");
  return !request.registry.empty() || (value != nullptr && *value != '\0');
}

}  // namespace

Lockfile read_lockfile(const fs::path& file) {
  const NamedFile read = read_named_file(file, kMaxDocumentBytes);
  if (!read.problem.empty()) {
    throw Error(ErrorCode::kLock, "read lock file " + file.string() + ": " + read.problem +
                                      ". Run 'kiln lock NAME@VERSION' to write it, and commit it");
  }
  return parse_lockfile(read.text, "lock file " + file.string());
}

void write_lockfile(const fs::path& file, const Lockfile& lock) {
  const std::string text = serialize_lockfile(lock);
  if (text.size() > kMaxDocumentBytes) {
    throw Error(ErrorCode::kUsage, "write lock file " + file.string() + ": it would have " +
                                       std::to_string(text.size()) + " bytes, at most " +
                                       std::to_string(kMaxDocumentBytes) +
                                       " are read. Lock fewer kernels in one file");
  }
  const fs::path target = fs::absolute(file);
  const fs::path draft = target.parent_path() / (".kiln.lock-" + unique_suffix());
  // 0666, which the umask narrows: the file is the user's to edit and to commit.
  const FileDescriptor opened = try_open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (!opened.valid()) fail_cache("create", draft, errno);
  try {
    write_all(opened.get(), text, draft);
    sync_file(opened.get(), draft);
    if (::rename(draft.c_str(), target.c_str()) != 0) fail_cache("rename to", target, errno);
    sync_folder(target.parent_path());
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
}

fs::path lockfile_of(const Request& request) {
  if (!request.lock.empty()) return request.lock;
  const char* const value = std::getenv("KILN_LOCK");
  return value != nullptr ? value : "";
}

std::optional<Held> hold_to_lock(std::string_view name, Request& request) {
  const fs::path file = lockfile_of(request);
  if (file.empty()) return std::nullopt;
  const Lockfile lock = read_lockfile(file);
  const auto found = lock.find(std::string(name));
  if (found == lock.end()) {
    fail_held(name, file.string() + " does not have it, it has " + names_in(lock) +
                        ". Run 'kiln lock " + std::string(name) + "@VERSION'");
  }
  const LockedKernel& kernel = found->second;
  if (request.version != 0 && request.version != kernel.version) {
    fail_held(name, "version " + std::to_string(request.version) + " is asked for, " +
                        file.string() + " has version " + std::to_string(kernel.version) +
                        ". Run 'kiln lock " + label(name, request.version) +
                        "', or ask for the locked one");
  }
  request.version = kernel.version;
  if (names_registry(request)) {
    const std::string asked = canonical_registry(request.registry);
    if (asked != kernel.registry) {
      fail_held(label(name, kernel.version),
                asked + " is to be asked, " + file.string() + " has it from " + kernel.registry +
                    ". Name no registry, or fetch the locked bytes from elsewhere with --from");
    }
  }
  request.registry = kernel.registry;
  return Held{file, kernel};
}

LockedVariant locked_variant(const Variant& variant, const VariantManifest& manifest,
                             const Config& config) {
  const auto library =
      std::find_if(config.files.begin(), config.files.end(),
                   [&](const ArchiveFile& file) { return file.path == config.library; });
  if (library == config.files.end()) {  // parse_config saw to it
    throw Error(ErrorCode::kInternal, "lock " + variant.id + ": its library is none of its files");
  }
  return {variant.manifest, manifest.config, manifest.layer, config.library, library->digest};
}

void check_held(const Held& held, std::string_view subject, const std::string& id,
                const LockedVariant& found) {
  const auto locked = held.kernel.variants.find(id);
  if (locked == held.kernel.variants.end()) {
    fail_held(subject, held.file.string() + " does not have this variant, though it has its " +
                           "index. Run 'kiln lock' with this version of kiln");
  }
  const auto agree = [&](std::string_view what, const std::string& is, const std::string& said) {
    if (is == said) return;
    fail_held(subject, std::string(what) + " is " + is + ", " + held.file.string() + " says " +
                           said + ". The lock file was changed by hand: take it from your " +
                           "version control, or run 'kiln lock'");
  };
  const auto text = [](const Descriptor& descriptor) {
    return descriptor.digest.str() + " (" + std::to_string(descriptor.size) + " bytes)";
  };
  const LockedVariant& said = locked->second;
  agree("manifest", text(found.manifest), text(said.manifest));
  agree("config", text(found.config), text(said.config));
  agree("layer", text(found.layer), text(said.layer));
  agree("library", found.library + " " + found.library_digest.str(),
        said.library + " " + said.library_digest.str());
}

LockedKernel lock_kernel(std::string_view name, const Request& request,
                         std::vector<std::string>& unread) {
  Selecting self = begin_selecting(name, request, std::nullopt);
  const FileLock used = self.cache.use_to_write();
  find_newest_index(self);
  const Selected& selected = self.selected;
  LockedKernel kernel{selected.registry, self.request.version, selected.descriptor, {}};
  for (const Variant& variant : selected.index.variants) {
    if (!variant.unread.empty()) {
      unread.push_back(variant.id);
      continue;
    }
    const Pulled pulled = pull_documents(self, variant);
    kernel.variants.emplace(variant.id, locked_variant(variant, pulled.manifest, pulled.config));
  }
  return kernel;
}

}  // namespace kiln
