// SPDX-License-Identifier: Apache-2.0
//
// Registry: a name that a person writes, and the repository that it stands for. After settings,
// before install. A registry is named by a string:
//
//   /path, ./path, file:///path    a folder with one OCI image layout per package
//   build/kernels/geglu-mlp        what `kiln build` left there; only in place of a registry (from)
//   /path/to/bundle.tar            a bundle (install/bundle.hpp): such layouts in one file
//   https://host[:port][/prefix]   an OCI registry, or a static tree of the same URLs
//   http://host[:port][/prefix]    the same; only for a loopback host, or one that the settings
//                                  list: without TLS nothing vouches for a version's digest
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/connection.hpp"
#include "http/retry.hpp"
#include "store/content.hpp"

namespace kiln {

struct Settings;  // settings/settings.hpp

/// The registry that a request means, in canonical spelling (an absolute folder, or a URL without a
/// final slash): its own words, else $KILN_REGISTRY, else the default that Kiln was built with.
/// Touches no network. Throws kUsage for a string that names no registry.
std::string canonical_registry(const std::string& requested, const Settings& settings);

/// One package of a registry, or of its mirrors. `registry` is canonical. A folder that does not
/// exist is kNotFound; a server is not asked yet. Counts into `traffic`, which outlives it.
std::unique_ptr<Repository> open_repository(const std::string& registry, std::string_view name,
                                            const Settings& settings, const Patience& patience,
                                            Traffic& traffic);

/// The same of one place, whatever mirrors it has.
std::unique_ptr<Repository> open_place(const std::string& place, std::string_view name,
                                       const Settings& settings, const Patience& patience,
                                       Traffic& traffic);

/// Of a mirror, beside which there is someone else to ask.
Patience of_mirror(Patience patience);

/// The packages that a registry has, sorted: the folders of a folder, what is in a bundle, the
/// catalog of a server; its mirrors' too. Names alone: nothing vouches for
/// them. Throws kNotFound for a server that has no catalog.
std::vector<std::string> list_packages(const std::string& registry, const Settings& settings,
                                       const Patience& patience, Traffic& traffic);

/// The mirrors of a registry (canonical), each with what the registry's path has beyond the entry's
/// that names it; of several such entries the longest. Canonical; throws kUsage for one that is no
/// registry.
std::vector<std::string> mirrors_of(const std::string& registry, const Settings& settings);

/// Throws kNotFound: `registry` does not have `name`@`version`, it has these versions.
[[noreturn]] void fail_no_version(std::string_view name, int version, const std::string& registry,
                                  const std::vector<int>& published);

/// "1, 2, 3"; of many the last ones, and how many more there are; "none".
std::string listed(const std::vector<int>& versions);

// ---- The implementations behind open_repository ----

std::unique_ptr<Repository> open_folder(const std::string& folder, std::string_view name,
                                        Traffic& traffic);
/// The folder of a package's build where `folder`, a canonical name, is one or has one of that name
/// in it; empty where there is none.
std::string build_output_in(const std::string& folder, std::string_view name);
std::unique_ptr<Repository> open_build_output(const std::string& folder, std::string_view name,
                                              Traffic& traffic);
std::unique_ptr<Repository> open_bundle(const std::string& file, std::string_view name,
                                        Traffic& traffic);
/// The pull side of the OCI distribution API, with a login where it asks for one.
std::unique_ptr<Repository> open_remote(const std::string& url, std::string_view name,
                                        const Settings& settings, const Patience& patience,
                                        Traffic& traffic);
/// The same over a connection that another shares.
std::unique_ptr<Repository> open_remote(const std::string& url, std::string_view name,
                                        const Patience& patience,
                                        std::shared_ptr<Connection> connection);
/// What hangs on a document as a server lists it, page by page up to kMostReferrers: what is beyond
/// is not known. Nothing where the server does not know the request, and its clients keep a tag.
inline constexpr std::size_t kMostReferrers = 10'000;
std::optional<ReferrerList> list_referrers(Connection& connection, const Patience& patience,
                                           const Digest& subject);
/// The packages in a folder, sorted. Throws kNetwork where it may not be read.
std::vector<std::string> list_folder(const std::filesystem::path& folder);
/// The repositories in a server's catalog that stand right below the registry's path.
std::vector<std::string> list_remote(const std::string& url, const Settings& settings,
                                     const Patience& patience, Traffic& traffic);
/// `registry` as its mirrors have it: each is asked in turn, the registry itself last.
std::unique_ptr<Repository> open_mirrored(const std::string& registry,
                                          std::vector<std::string> mirrors, std::string_view name,
                                          const Settings& settings, const Patience& patience,
                                          Traffic& traffic);

}  // namespace kiln
