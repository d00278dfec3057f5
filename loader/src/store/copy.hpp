// SPDX-License-Identifier: Apache-2.0
//
// Copy: a blob from one content to another, or a document into memory: asked again where the answer
// was cut, continued where it stopped, and verified before anybody uses it. Between the sources and
// the cache; install, lock, bundle and repair all go through it. One call is for one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "http/retry.hpp"
#include "store/content.hpp"

namespace kiln {

/// Told how many bytes of the blob are there.
using Progress = std::function<void(std::uint64_t done)>;

/// Makes `to` have the blob. Throws kIntegrity for bytes that are not the promised ones, what
/// Content::open throws, and kNetwork after Limits::tries tries without progress. A blob whose
/// bytes came in several answers and are wrong is fetched once more from its start.
void copy(const Content& from, const Storage& to, const Descriptor& descriptor,
          std::string_view what, const Patience& patience, const Progress& progress = {});

/// A document of at most kMaxDocumentBytes, verified. Each try begins at its start.
std::string read_document(const Content& from, const Descriptor& descriptor, std::string_view what,
                          const Patience& patience);

/// The same out of `to`, or else out of `from` into `to`.
std::string copy_document(const Content& from, const Storage& to, const Descriptor& descriptor,
                          std::string_view what, const Patience& patience,
                          const Progress& progress = {});

}  // namespace kiln
