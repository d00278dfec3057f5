// SPDX-License-Identifier: Apache-2.0
//
// A blob that is fetched into memory, verified on its way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "store/content.hpp"
#include "verify/verify.hpp"

namespace kiln::test {

/// A blob of a registry that holds nothing else, and a sink for it.
struct Blob : BlobSink {
  explicit Blob(std::string all)
      : content(std::move(all)),
        descriptor{"", Digest::of(content), content.size()},
        verifier(descriptor, {"blob", "here", ""}) {}
  void start_with(std::string_view old) { write(old); }
  std::uint64_t size() const override { return bytes.size(); }
  void write(std::string_view piece) override {
    verifier.update(piece);
    bytes += piece;
  }
  void restart() override {
    bytes.clear();
    ++restarts;
    verifier = StreamVerifier(descriptor, {"blob", "here", ""});
  }
  void finish() override { verifier.finish(); }

  std::string content;
  Descriptor descriptor;
  StreamVerifier verifier;
  std::string bytes;
  int restarts = 0;
};

/// Its storage.
struct Memory final : Storage {
  explicit Memory(Blob& held) : blob(held) {}
  bool exists(const Descriptor&) const override { return false; }
  void open(const Descriptor&, BlobSink&, const Asking&) const override {}
  std::string origin(const Descriptor&) const override { return "memory"; }
  std::string advice() const override { return ""; }
  void write(const Descriptor&, const Subject&,
             const std::function<void(BlobSink&)>& fill) const override {
    fill(blob);
  }
  Blob& blob;
};

}  // namespace kiln::test
