// SPDX-License-Identifier: Apache-2.0
//
// Verify: bytes against the size and SHA-256 that were promised for them, before any parser sees
// them. Between a content (the cache too, whose files are not trusted) and everything that reads.
// One StreamVerifier is for one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "documents/descriptor.hpp"
#include "verify/hash_thread.hpp"

namespace kiln {

/// What the bytes are and where they came from, for messages.
struct Subject {
  std::string what;    ///< "layer of geglu-mlp@1 cpu-x86-64-v3"
  std::string origin;  ///< a file path or a URL
  std::string next;    ///< what the user can do about bytes that are wrong
};

/// What that is where the bytes lie in the cache.
inline constexpr const char* kFetchAgain = "Run 'kiln cache repair', which fetches it again";

/// Throws kIntegrity: a variant's folder is there and its library is not.
[[noreturn]] void fail_missing_library(const std::filesystem::path& library);

/// Throws kIntegrity, naming subject, origin and both digests, unless the bytes are exactly the
/// promised ones.
void verify_bytes(std::string_view bytes, const Descriptor& promised, const Subject& subject);

/// Where a stream is hashed. kBeside: on a thread, while the caller has other work to do, such as
/// to receive, to decode and to write, and there is much to hash.
enum class Hashing { kHere, kBeside };

/// For fewer bytes than this, a thread costs more than it saves.
inline constexpr std::size_t kWorthAThread = std::size_t{1} << 20;

/// The same for a stream: update() throws as soon as there are more bytes than promised.
class StreamVerifier {
 public:
  StreamVerifier(Descriptor promised, Subject subject, Hashing hashing = Hashing::kHere);
  void update(std::string_view bytes);
  void finish();  ///< at the end; throws for too few bytes or another digest; again: does nothing
  std::uint64_t seen() const { return seen_; }

 private:
  Descriptor promised_;
  Subject subject_;
  Sha256 hash_;
  std::unique_ptr<HashThread> beside_;  ///< hashes in the place of hash_
  std::uint64_t seen_ = 0;
  bool good_ = false;
};

}  // namespace kiln
