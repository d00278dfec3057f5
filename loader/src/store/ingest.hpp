// SPDX-License-Identifier: Apache-2.0
//
// Ingest: one blob on its way into the cache: a file of its own that is verified while it is
// written, and renamed to its place once it is complete and synced. Filled by copy, part of cache.
// A download that was cut short leaves its file, and the next one goes on from there. For one
// thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/posix.hpp"
#include "store/content.hpp"
#include "verify/verify.hpp"

namespace kiln {

class Ingest final : public BlobSink {
 public:
  /// Takes over what the file `part` has, hashed anew: its caller holds the blob's lock.
  /// Without the lock, `resume` is false and the file must be new.
  Ingest(std::filesystem::path part, bool resume, const Descriptor& promised,
         const Subject& subject);
  /// Removes the file, unless it was published or kept.
  ~Ingest() override;
  Ingest(const Ingest&) = delete;
  Ingest& operator=(const Ingest&) = delete;

  std::uint64_t size() const override { return verifier_.seen(); }
  void write(std::string_view bytes) override;
  void restart() override;
  void finish() override { verifier_.finish(); }

  /// Leaves the file for a later download to resume, if it has any bytes and a name to find it by.
  void keep();

  /// finish(), then the file's durable place.
  void publish(const std::filesystem::path& to);

 private:
  void open();
  void share();

  Descriptor promised_;
  Subject subject_;
  StreamVerifier verifier_;
  std::filesystem::path path_;
  FileDescriptor file_;
  WriteBehind behind_;
  bool resumable_;
  bool kept_ = false;
};

}  // namespace kiln
