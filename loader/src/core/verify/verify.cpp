// SPDX-License-Identifier: Apache-2.0
#include "verify/verify.hpp"

#include <utility>

#include "kiln/error.hpp"

namespace kiln {
namespace {

[[noreturn]] void fail(const Subject& subject, const std::string& found) {
  std::string text = "verify " + subject.what + ": " + found + " (from " + subject.origin +
                     "); nothing was loaded";
  if (!subject.next.empty()) text += ". " + subject.next;
  throw Error(ErrorCode::kIntegrity, text);
}

}  // namespace

StreamVerifier::StreamVerifier(Descriptor promised, Subject subject, Hashing hashing)
    : promised_(std::move(promised)), subject_(std::move(subject)) {
  if (hashing == Hashing::kBeside && promised_.size >= kWorthAThread) {
    beside_ = std::make_unique<HashThread>();
  }
}

void StreamVerifier::update(std::string_view bytes) {
  if (bytes.size() > promised_.size - seen_) {
    fail(subject_, "there are more than the " + std::to_string(promised_.size) +
                       " bytes promised for " + promised_.digest.str());
  }
  seen_ += bytes.size();
  beside_ ? beside_->update(bytes) : hash_.update(bytes);
}

void StreamVerifier::finish() {
  if (good_) return;
  if (seen_ != promised_.size) {
    fail(subject_, "there are " + std::to_string(seen_) + " bytes of the " +
                       std::to_string(promised_.size) + " promised for " + promised_.digest.str());
  }
  const Digest found = beside_ ? beside_->finish() : hash_.finish();
  if (found != promised_.digest) {
    fail(subject_, "digest is " + found.str() + ", promised was " + promised_.digest.str());
  }
  good_ = true;
}

void fail_missing_library(const std::filesystem::path& library) {
  throw Error(ErrorCode::kIntegrity, "open " + library.string() +
                                         ": the library is not there, though its folder is. " +
                                         kFetchAgain);
}

void verify_bytes(std::string_view bytes, const Descriptor& promised, const Subject& subject) {
  StreamVerifier verifier(promised, subject);
  verifier.update(bytes);
  verifier.finish();
}

}  // namespace kiln
