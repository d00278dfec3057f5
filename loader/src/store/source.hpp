// SPDX-License-Identifier: Apache-2.0
//
// Source: the implementations behind fetch.hpp's open_source. Internal to fetch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "settings/settings.hpp"
#include "store/fetch.hpp"

namespace kiln {

/// A folder with one OCI image layout per package: <root>/<package>/{index.json,blobs/sha256/…}.
std::unique_ptr<Source> open_folder_source(const std::string& folder);

/// An OCI archive: such a layout in an uncompressed tar, with tags "<package>:<version>".
std::unique_ptr<Source> open_bundle_source(const std::string& file);

/// The pull side of the OCI distribution API, with a login where it asks for one; a static tree of
/// the same URLs serves as well.
std::unique_ptr<Source> open_http_source(const std::string& url, SourceOptions options,
                                         const Limits& limits);

/// `registry` as its mirrors have it: each is asked in turn, the registry itself last.
std::unique_ptr<Source> open_mirrored_source(const std::string& registry,
                                             const std::vector<std::string>& mirrors,
                                             SourceOptions options, const Limits& limits);

/// A registry's URL in canonical spelling: scheme and host in lower case, no default port, no final
/// slash. Throws kUsage for credentials, a query, a fragment, or plain http where it is not
/// allowed.
std::string canonical_url(const std::string& url);

}  // namespace kiln
