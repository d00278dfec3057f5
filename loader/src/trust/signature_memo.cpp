// SPDX-License-Identifier: Apache-2.0
#include "trust/signature_memo.hpp"

#include <cstddef>

#include "base/draft.hpp"
#include "kiln/error.hpp"
#include "settings/trust_file.hpp"

namespace kiln::trust {
namespace {

constexpr std::size_t kMostFacts = 1000;  // of some hundred registries; then it begins anew
constexpr std::size_t kLine = 65;

std::set<std::string> read_facts(const std::filesystem::path& file) {
  std::set<std::string> facts;
  try {
    const std::string text = read_owned(file, kMostFacts * kLine).value_or("");
    for (std::size_t at = 0; at + kLine <= text.size(); at += kLine) {
      facts.insert(text.substr(at, kLine - 1));
    }
  } catch (const Error&) {  // another's file, or a damaged one: signatures are verified again
    facts.clear();
  }
  return facts;
}

}  // namespace

bool SignatureMemo::knows(const Digest& fact) {
  if (file_.empty()) return false;
  if (!known_) known_ = read_facts(file_);
  return known_->contains(fact.hex());
}

void SignatureMemo::learn(const Digest& fact) {
  if (file_.empty()) return;
  if (!known_) known_ = read_facts(file_);
  if (known_->size() >= kMostFacts) known_->clear();
  changed_ = known_->insert(fact.hex()).second || changed_;
}

void SignatureMemo::save() noexcept {
  if (!changed_) return;
  changed_ = false;
  try {
    std::string text;
    for (const std::string& fact : *known_) text += fact + '\n';
    replace_file(file_, text, 0600);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace kiln::trust
