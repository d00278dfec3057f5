// SPDX-License-Identifier: Apache-2.0
#include "store/copy.hpp"

#include <chrono>
#include <utility>

#include "kiln/error.hpp"

namespace kiln {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kProgressBytes = std::uint64_t{64} << 10;

/// Passes a blob on. Knows whether its bytes came in more than one answer: each may have been
/// right, and the whole wrong.
class Arrival final : public BlobSink {
 public:
  Arrival(BlobSink& to, const Progress& progress, const std::stop_token& stop)
      : to_(to), progress_(progress), stop_(stop) {}

  std::uint64_t size() const override { return to_.size(); }
  void write(std::string_view bytes) override {
    if (stop_.stop_requested()) fail_cancelled("copy a blob");
    to_.write(bytes);
    if (progress_) progress_(to_.size());
  }
  void restart() override {
    to_.restart();
    joined_ = false;
  }
  void finish() override { to_.finish(); }

  void begin_answer() { joined_ = to_.size() > 0; }
  bool joined() const { return joined_; }

 private:
  BlobSink& to_;
  const Progress& progress_;
  const std::stop_token& stop_;
  bool joined_ = false;
};

void fill(const Content& from, const Descriptor& descriptor, Arrival& sink, std::string_view what,
          const Patience& patience) {
  // Bytes that stay, not bytes that came: a server that begins anew each time makes no progress.
  std::uint64_t most = sink.size();
  const auto grown = [&] {
    if (sink.size() < most + kProgressBytes) return false;
    most = sink.size();
    return true;
  };
  persist(patience, what, time_for(descriptor.size), grown, [&](Tries::Clock::time_point until) {
    sink.begin_answer();
    if (sink.size() < descriptor.size || descriptor.size == 0) {
      from.open(descriptor, sink, {what, until});
    }
    try {
      sink.finish();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIntegrity || !sink.joined()) throw;
      sink.restart();
      if (patience.on_event) {
        patience.on_event({Event::Stage::kRetry, std::string(what), 0, 0,
                           std::string(error.what()) + "; once more from the start"});
      }
      from.open(descriptor, sink, {what, until});
      sink.finish();
    }
  });
}

/// A document in memory. Its size is always 0 for its source, which so begins at the start.
class DocumentSink final : public BlobSink {
 public:
  DocumentSink(const Descriptor& descriptor, const Subject& subject)
      : descriptor_(descriptor), subject_(subject), verifier_(descriptor, subject) {}

  std::uint64_t size() const override { return 0; }
  void write(std::string_view bytes) override {
    verifier_.update(bytes);
    bytes_ += bytes;
  }
  void restart() override {
    verifier_ = StreamVerifier(descriptor_, subject_);
    bytes_.clear();
  }
  void finish() override { verifier_.finish(); }
  std::string take() { return std::move(bytes_); }

 private:
  Descriptor descriptor_;
  Subject subject_;
  StreamVerifier verifier_;
  std::string bytes_;
};

}  // namespace

void copy(const Content& from, const Storage& to, const Descriptor& descriptor,
          std::string_view what, const Patience& patience, const Progress& progress) {
  const Subject subject{std::string(what), from.origin(descriptor), from.advice()};
  to.write(descriptor, subject, [&](BlobSink& sink) {
    if (progress) progress(sink.size());
    Arrival arrival(sink, progress, patience.stop);
    fill(from, descriptor, arrival, what, patience);
  });
}

std::string read_document(const Content& from, const Descriptor& descriptor, std::string_view what,
                          const Patience& patience) {
  if (descriptor.size > kMaxDocumentBytes) {
    throw Error(ErrorCode::kIntegrity,
                "read " + std::string(what) + ": " + std::to_string(descriptor.size) +
                    " bytes, expected at most " + std::to_string(kMaxDocumentBytes) +
                    " for a document (" + from.origin(descriptor) + "). " + from.advice());
  }
  DocumentSink document(descriptor, {std::string(what), from.origin(descriptor), from.advice()});
  persist(
      patience, what, seconds(0), [] { return false; },
      [&](Tries::Clock::time_point until) {
        document.restart();
        from.open(descriptor, document, {what, until});
        document.finish();
      });
  return document.take();
}

std::string copy_document(const Content& from, const Storage& to, const Descriptor& descriptor,
                          std::string_view what, const Patience& patience,
                          const Progress& progress) {
  const Subject subject{std::string(what), from.origin(descriptor), from.advice()};
  std::string bytes;
  if (!to.exists(descriptor)) {
    if (progress) progress(0);
    to.write(descriptor, subject, [&](BlobSink& sink) {
      bytes = read_document(from, descriptor, what, patience);
      if (sink.size() > 0) sink.restart();
      sink.write(bytes);
      sink.finish();
    });
    if (progress) progress(descriptor.size);
  }
  if (!bytes.empty()) return bytes;
  try {
    return read_document(to, descriptor, what, patience);  // found there, or another was faster
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;  // somebody emptied the cache meanwhile
  }
  return read_document(from, descriptor, what, patience);
}

}  // namespace kiln
