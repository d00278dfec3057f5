// SPDX-License-Identifier: Apache-2.0
//
// Install: from a request to a verified library on disk. Five steps, each of which takes a value
// and gives the next one:
//
//   find_index -> choose -> pull -> unpack -> remember
//
// pull looks whether the statements are there that the user requires of certain keys.
//
// Before it: settings and probe. After it: load. Functions are safe from several threads and
// processes at once; one Install is for one request and one thread.
//
// The cache answers where it can: a version whose index is there is not asked for again, and with
// everything there nothing is fetched and nothing is written. If nothing in a cached index fits
// this machine, the registry is asked once more: variants may have been added to the version. A
// folder is looked at each time: the same version in other bytes is an error. What `kiln build`
// left in a folder is read each time, and the cache remembers no version of it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/lockfile.hpp"
#include "documents/variant.hpp"
#include "install/advise.hpp"
#include "install/source.hpp"
#include "kiln/request.hpp"
#include "resolve/resolve.hpp"

namespace kiln {

/// The index of a version, read and checked.
struct VersionIndex {
  Descriptor descriptor;
  Index index;
  std::string fetched;  ///< its bytes where they came from the registry; empty: from the cache
  /// Who signed this index for the version; empty: a tag or a lock file names it.
  std::optional<Digest> signers;
  std::vector<Advisory> advisories = {};  ///< signed ones that may concern it
};

/// What resolve made of an index.
struct Choice {
  std::string registry;  ///< canonical
  VersionIndex version;
  Resolution resolution;  ///< resolution.chosen may be empty
  /// Where nothing was chosen: resolution.explain(), the hint, and, asked of the registry, which
  /// other published version has a build that fits. The text of the error, whose code is
  /// resolution.code.
  std::string no_variant;
  std::string no_variant_brief;  ///< the same without the table, if it was shown before
  /// What nothing fitted for, before a fallback of the request was taken.
  std::vector<Resolution> refused;
  Advised advised = {};  ///< what there is about this version

  /// Those that warn of the variant that was chosen.
  std::vector<Advisory> warnings() const;

  /// The variant that was chosen. Throws resolution.code.
  const Variant& variant() const;
};

/// One variant: its documents, which agree with the index and the lock file, and its files.
struct Package {
  std::string subject;  ///< "geglu-mlp@1 cpu-x86-64-v3"
  Variant variant;
  VariantManifest manifest;
  Config config;
  std::filesystem::path folder;   ///< where the files are, or go
  std::filesystem::path library;  ///< the one that get_kernel loads
  bool just_unpacked = false;     ///< each of its files was hashed as it was written
};

struct Installed {
  Package package;
  Choice choice;
  Traffic traffic;  ///< of the whole install
  FileLock lease;   ///< while it lives, gc keeps the variant
};

/// What one writes programs against: a version's headers, its Python modules and its card. The same
/// for every machine.
struct DevFiles {
  std::string name;
  int version = 0;
  std::filesystem::path folder;
  std::filesystem::path include;   ///< in it: the folder for a compiler's -I
  std::vector<ArchiveFile> files;  ///< by path in the folder, with the digests that were verified
};

/// One of them by its path, its bytes those that the version's documents name. Throws kNotFound,
/// and kIntegrity for other bytes, or for more than `most`.
std::string read_dev_file(const DevFiles& dev, const std::string& path,
                          std::uint64_t most = kMaxDocumentBytes);

/// What the command may ask for, and a program's request may not.
struct InstallOptions {
  /// Another machine's facts, for which it is to be chosen; nothing of this machine is probed.
  const Host* host = nullptr;
  bool hold_to_lock = true;  ///< whether a lock file counts: not where one is being made
  /// Whether each entry of the request's `deny` must be a variant of this package: not where one
  /// list is for several (unknown_denied).
  bool deny_is_its_own = true;
  /// Why CUDA does not start on this machine, where the caller has tried: no GPU of it counts.
  std::string driver_problem = {};
};

/// One request under way.
class Install {
 public:
  /// Reads the settings and the lock file. Throws kUsage, kLock, kCache.
  Install(std::string_view name, const Request& request, const InstallOptions& options = {});

  /// All five steps.
  Installed run();

  /// The dev layer likewise, held to the same lock file and statements, and hashed on its way and
  /// again where it is there. Nothing is chosen: the first variant that this Kiln can read has it,
  /// whether it runs here or not. Throws kNotFound where the package has none.
  DevFiles run_dev();

  /// The first two, with the request's fallbacks. Does not throw where nothing fits; kNotFound
  /// where the request denies what no variant is called. Where the registry cannot be asked for
  /// newer builds, or a lock file pins the index, the latter is a warning.
  Choice choose();

  /// What the request denies and no variant is called, neither of the version that was chosen from
  /// nor of those that its fallbacks name. Where the cache may be behind the registry, that is
  /// asked, and what knows an entry is chosen from; `not_asked` gets the reason where it cannot be.
  /// What the settings deny is for all packages, and need not be in this one.
  std::vector<std::string> unknown_denied(Choice& choice, std::string& not_asked);

  /// The index as the registry has it now; the locked one where there is a lock; offline, the
  /// cached one.
  VersionIndex find_newest_index();

  /// The documents of what was chosen, out of the cache, or else out of the registry into it.
  /// Every road to a library leads through here: throws kTrust unless the statements that this user
  /// requires are there (install/signature_policy.hpp).
  Package pull(const Choice& choice);

  /// The documents of any variant, to copy them elsewhere.
  Package pull(const VersionIndex& version, const Variant& variant);

  /// The layer likewise, its bytes verified just now.
  std::filesystem::path pull_layer(const Package& package);
  /// It and the dev layer, if there is one, to copy them elsewhere.
  void pull_layers(const Package& package);

  /// What a variant needs to be loaded is in the cache and whole; fetches nothing. Throws what
  /// install would throw offline.
  void check_installed(const Package& package);

  Source& source() { return source_; }
  bool is_locked() const { return lock_.has_value(); }
  const Cache& cache() const { return source_.cache; }
  const std::string& registry() const { return source_.registry; }

 private:
  /// What is asked of resolve: the request, or one of its fallbacks.
  struct Attempt {
    int version = 0;
    Selection selection;
  };
  Attempt attempt(std::size_t fallbacks) const;

  /// `ask`: the registry, though the cache has one.
  VersionIndex find_index(int version, bool ask);
  Choice choose(VersionIndex version, const Selection& selection);
  Choice choose_or_fall_back(bool ask);
  /// Where the registry may have added variants to what the cache has. Nothing, with the reason,
  /// where it cannot be asked.
  std::optional<VersionIndex> newer_index(const VersionIndex& known, std::string& not_asked);
  /// What is asked for; nothing, with the reason, where no registry answers.
  std::optional<VersionIndex> answer(const std::function<std::optional<VersionIndex>()>& ask,
                                     std::string& not_asked) const;
  void check_attested(const Choice& choice, const Package& package);
  Package unpack(Package package);
  std::filesystem::path pull_layer(const Descriptor& layer, const std::string& subject,
                                   bool dev = false);
  /// A layer, and where its files are or go.
  struct Part {
    std::string subject;
    Descriptor layer;
    std::uint64_t bytes = 0;  ///< of its files
    Config config;
    Digest lock;  ///< held while its folder is filled; its download holds the layer's
    std::filesystem::path folder;
    bool dev = false;
  };
  bool unpack(const Part& part);
  void remember(const VersionIndex& version);
  void write_ref(const VersionIndex& version);
  void list_again(const VersionIndex& version);

  VersionIndex read_index(Document document, int version, bool fetched) const;
  std::optional<VersionIndex> recall_index(int version);
  VersionIndex ask_document(int version);
  VersionIndex ask_index(int version, const VersionIndex* known);
  std::optional<VersionIndex> other_index(const VersionIndex& known);
  bool may_replace(const Ref& known, const VersionIndex& version) const;
  VersionIndex locked_index();
  Choice judge(VersionIndex version, const Selection& selection);
  Resolution resolve(const Index& index, const Selection& selection);
  void look_up_libraries(const Index& index, const Selection& selection);
  void explain_none(Choice& choice, const Selection& selection, const std::string& not_asked);
  std::string other_version(int version, const Selection& selection);

  /// Out of the cache, of the index that carried it, or of the registry.
  std::string document(const Descriptor& descriptor, const std::function<std::string()>& carried,
                       const std::string& what, Event::Stage stage, const std::string& subject);
  Carried carried_by(const VersionIndex& version, const Variant& variant) const;
  std::optional<std::string> cached(const Descriptor& descriptor, const std::string& what) const;
  bool is_unpacked(const Part& part) const;
  void check_version() const;
  void report(Event::Stage stage, const std::string& subject, std::uint64_t done,
              std::uint64_t total) const;

  Source source_;
  Request request_;
  std::filesystem::path lock_file_;   ///< empty: none
  std::optional<LockedKernel> lock_;  ///< what it says of this kernel
  bool deny_is_its_own_;
  const Host* other_host_;
  std::string driver_problem_;
  std::optional<Host> host_;
};

/// The whole pipeline but the load. On a warm cache it reads four small documents and hashes them;
/// the library itself is hashed when it is loaded, or by verify_installed. Throws kUsage,
/// kNoVariant, kNotFound, kNetwork, kIntegrity, kLock, kCache, kOffline, kUpgrade, kCancelled.
Installed install(std::string_view name, const Request& request,
                  const InstallOptions& options = {});

/// Several variants of one version, a few at once, with their layers or without.
enum class Layers { kLeft, kPulled };
std::vector<Package> pull_all(std::string_view name, const Request& request,
                              const InstallOptions& options, const VersionIndex& version,
                              const std::vector<const Variant*>& variants, Layers layers);

/// A ban of what there is not bans nothing: kNotFound, with where the variants are listed.
[[noreturn]] void fail_unknown_denied(const std::vector<std::string>& unknown,
                                      const std::string& package);

/// What a request, and the settings, ask of resolve.
Selection selection_of(const Request& request, const Settings& settings);

/// "cpu" or "version:2". Throws kUsage.
Fallback parse_fallback(std::string_view text);

}  // namespace kiln
