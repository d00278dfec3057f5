// SPDX-License-Identifier: Apache-2.0
#include "install/lock.hpp"

#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "base/file_lock.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/shell_word.hpp"
#include "documents/names.hpp"
#include "documents/variant.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"
#include "settings/owners.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_lock(std::string_view subject, const std::string& what) {
  throw Error(ErrorCode::kLock, "lock " + std::string(subject) + ": " + what);
}

std::string names_in(const Lockfile& lock) {
  if (lock.empty()) return "nothing";
  return join(lock, ", ", [](const auto& each) { return label(each.first, each.second.version); });
}

/// The next step of who has a lock file that does not hold.
std::string replacement_of(const fs::path& file) {
  return ". Restore it from version control, or replace it: 'kiln lock --force NAME@VERSION" +
         lock_option(file) + "'";
}

/// Nothing if there is no such file.
std::optional<Lockfile> try_read_lockfile(const fs::path& file) {
  const NamedFile read = read_named_file(file, kMaxDocumentBytes);
  if (read.absent) return std::nullopt;
  if (!read.problem.empty()) {
    throw Error(ErrorCode::kLock, "read lock file " + file.string() + ": " + read.problem +
                                      ". Remove it or make it readable; " +
                                      "'kiln lock NAME@VERSION" + lock_option(file) +
                                      "' writes a new one");
  }
  if (const std::optional<Doubt> doubt = doubt_about_project_file(file)) {
    throw Error(ErrorCode::kLock,
                "read lock file " + file.string() + ": " + doubt->why + ". " + doubt->next_step);
  }
  try {
    return parse_lockfile(read.text, "lock file " + file.string());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLock) throw;
    throw Error(ErrorCode::kLock, error.what() + replacement_of(file));
  }
}

}  // namespace

std::string lock_option(const fs::path& file) {
  return file == "kiln.lock" ? "" : " --lock " + shell_word(file.string());
}

std::string locked_option(const fs::path& file) {
  const std::string option = lock_option(file);
  return option.empty() ? " --locked" : option;
}

Lockfile read_lockfile(const fs::path& file) {
  std::optional<Lockfile> lock = try_read_lockfile(file);
  if (!lock) {
    absolute_path(file);  // throws where it is the current folder that is not there
    throw Error(ErrorCode::kLock, "read lock file " + file.string() +
                                      ": there is no such file. Run 'kiln lock NAME@VERSION" +
                                      lock_option(file) + "' to write it, and commit it");
  }
  return *std::move(lock);
}

void write_lockfile(const fs::path& file, const Lockfile& lock) {
  const std::string text = serialize_lockfile(lock);
  if (text.size() > kMaxDocumentBytes) {
    throw Error(ErrorCode::kUsage, "write lock file " + file.string() + ": it would have " +
                                       std::to_string(text.size()) + " bytes, at most " +
                                       std::to_string(kMaxDocumentBytes) +
                                       " are read. Lock fewer kernels in one file");
  }
  replace_file(file, text, 0664);  // the user's to edit and to commit
}

LockfileUpdate update_lockfile(const fs::path& file, const LockfileEdit& edit) {
  const fs::path target = edit.write ? followed_to_write(file) : followed(file);
  std::vector<FileLock> alone;
  if (edit.write) {
    std::vector<fs::path> files = {target};
    files.insert(files.end(), edit.beside.begin(), edit.beside.end());
    alone = lock_folders_of(files, edit.waiting);
  }
  LockfileUpdate update;
  std::optional<Lockfile> found;
  if (!edit.replace) found = try_read_lockfile(target);
  if (found) update.before = *found;
  update.after = edit.change(update.before);
  update.changed = !found || update.after != update.before;
  if (update.changed && edit.write) write_lockfile(target, update.after);
  return update;
}

fs::path lockfile_of(const Request& request, const Settings& settings) {
  return request.lock.empty() ? settings.lock : request.lock;
}

void fail_other_version(const fs::path& file, std::string_view name, int version, int locked) {
  fail_lock(name, "version " + std::to_string(version) + " is asked for, " + file.string() +
                      " has version " + std::to_string(locked) + ". Run 'kiln lock " +
                      label(name, version) + lock_option(file) + "', or ask for the locked one");
}

LockedKernel locked_kernel(const fs::path& file, std::string_view name, const Request& request,
                           const Settings& settings) {
  Lockfile lock = read_lockfile(file);
  const auto found = lock.find(std::string(name));
  if (found == lock.end()) {
    fail_lock(name, file.string() + " does not have it, it has " + names_in(lock) +
                        ". Run 'kiln lock " + std::string(name) + "@VERSION" + lock_option(file) +
                        "'");
  }
  LockedKernel& kernel = found->second;
  if (request.version != 0 && request.version != kernel.version) {
    fail_other_version(file, name, request.version, kernel.version);
  }
  // Not the registry of a settings file, which is for requests that name none.
  const bool names_registry =
      !request.registry.empty() || !environment().text("KILN_REGISTRY").empty();
  if (names_registry) {
    const std::string asked = canonical_registry(request.registry, settings);
    if (asked != kernel.registry) {
      fail_lock(label(name, kernel.version),
                asked + " is to be asked, " + file.string() + " has it from " + kernel.registry +
                    ". Name no registry, or fetch the locked bytes from elsewhere with --from");
    }
  }
  return std::move(kernel);
}

LockedVariant locked_variant(const Package& package) {
  const ArchiveFile& library = library_file(package.config);
  return {package.variant.manifest, package.manifest.config, package.manifest.layer, library.path,
          library.digest};
}

void check_locked(const fs::path& file, const LockedKernel& kernel, const Package& package) {
  const auto locked = kernel.variants.find(package.variant.id);
  if (locked == kernel.variants.end()) {
    fail_lock(package.subject,
              file.string() +
                  " does not have this variant, though it has its index. Run 'kiln lock" +
                  lock_option(file) + "' with this version of kiln");
  }
  const auto agree = [&](std::string_view what, const std::string& is, const std::string& said) {
    if (is == said) return;
    fail_lock(package.subject, std::string(what) + " is " + is + ", " + file.string() + " says " +
                                   said + ". The lock file was changed by hand" +
                                   replacement_of(file));
  };
  const auto text = [](const Descriptor& descriptor) {
    return descriptor.digest.str() + " (" + std::to_string(descriptor.size) + " bytes)";
  };
  const LockedVariant found = locked_variant(package);
  const LockedVariant& said = locked->second;
  agree("manifest", text(found.manifest), text(said.manifest));
  agree("config", text(found.config), text(said.config));
  agree("layer", text(found.layer), text(said.layer));
  agree("library", found.library + " " + found.library_digest.str(),
        said.library + " " + said.library_digest.str());
}

LockedKernel lock_kernel(std::string_view name, const Request& request,
                         std::vector<std::string>& unread) {
  const InstallOptions options{.hold_to_lock = false};
  Install install(name, request, options);
  install.source().check_is_published("lock");
  const FileLock used = install.cache().use_to_write();
  const VersionIndex version = install.find_newest_index();
  std::vector<const Variant*> readable;
  for (const Variant& variant : version.index.variants) {
    if (variant.unread.empty()) {
      readable.push_back(&variant);
    } else {
      unread.push_back(variant.id);
    }
  }
  LockedKernel kernel{install.registry(), version.index.version, version.descriptor, {}};
  for (const Package& each : pull_all(name, request, options, version, readable, Layers::kLeft)) {
    kernel.variants.emplace(each.variant.id, locked_variant(each));
  }
  return kernel;
}

}  // namespace kiln
