// SPDX-License-Identifier: Apache-2.0
#include "install/signature_policy.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "install/vouch.hpp"
#include "kiln/error.hpp"
#include "trust/signature_memo.hpp"

namespace kiln {
namespace {

using attest::Attestation;
using trust::SignatureMemo;

/// Whether the settings want the tests of this very GPU.
bool wants_this_gpu(const Candidate& what, const Settings& settings) {
  return settings.tested == Tested::kHere && !what.package->variant.needs.is_cpu();
}

/// The GPUs that the variant was chosen for; none where those do not matter.
std::vector<std::string> gpus_of(const Candidate& what, const Settings& settings) {
  std::vector<std::string> names;
  if (!wants_this_gpu(what, settings)) return names;
  const Resolution& resolution = *what.resolution;
  for (const Gpu& gpu : resolution.host.gpus) {
    if (resolution.all_gpus || gpu.ordinal == resolution.device.ordinal) {
      names.push_back(gpu.name);
    }
  }
  return names;
}

/// Whether a statement of tests has a green result of this library on this hardware; empty: any.
bool passed(const JsonView& tests, const Package& package, const std::string& gpu) {
  const std::vector<JsonView> records = tests.at("records").items();
  return std::ranges::any_of(records, [&](const JsonView& record) {
    if (!gpu.empty() && record.at("hardware").string() != gpu) return false;
    const std::vector<JsonView> results = record.at("results").items();
    return std::ranges::any_of(results, [&](const JsonView& result) {
      return parse_digest(result.at("library")) == library_file(package.config).digest &&
             result.at("cases").unsigned_integer() > 0 &&
             result.at("failed").unsigned_integer() == 0;
    });
  });
}

/// Whether what it says holds for what is to run, whoever says it.
bool fits(const Attestation& one, const attest::Kind& kind, const Candidate& what,
          const std::vector<std::string>& gpus) {
  if (one.statement.predicate_type != kind.predicate_type) return false;
  if (kind.word != "tests") return true;
  try {
    const Json json = parse_json(one.statement.predicate, "tests of " + what.label);
    const JsonView tests(json, "tests of " + what.label);
    if (gpus.empty()) return passed(tests, *what.package, "");
    return std::ranges::all_of(
        gpus, [&](const std::string& gpu) { return passed(tests, *what.package, gpu); });
  } catch (const Error&) {  // a document of another shape says nothing
    return false;
  }
}

/// A requirement that covers the candidate, ready to be checked.
struct Demand {
  const Requirement* requirement;
  const attest::Kind* kind;
  std::vector<std::string> gpus;
  Digest fact;  ///< that it was found to be met
};

Demand read(const Requirement& requirement, const Candidate& what, const Settings& settings) {
  Demand rule{&requirement, attest::kind_of_word(requirement.statement), {}, {}};
  if (rule.kind == nullptr) {
    throw Error(ErrorCode::kUsage,
                "read trust " + trust_path().string() + ": it requires the statement " +
                    quote(requirement.statement) + ", expected one of " +
                    join(attest::kKinds, ", ",
                         [](const attest::Kind& kind) { return std::string(kind.word); }) +
                    ". Write it anew with 'kiln trust require'");
  }
  Json fact = {"kiln.attested/1", what.index.digest.str(), requirement.statement,
               requirement.threshold, requirement.keys};
  if (rule.kind->word == "tests") {
    rule.gpus = gpus_of(what, settings);
    fact.push_back(library_file(what.package->config).digest.str());
    fact.push_back(rule.gpus);
  }
  rule.fact = Digest::of(dump_json(fact));
  return rule;
}

/// What a requirement found, for its error.
struct Count {
  std::set<std::string> signers;  ///< of the keys that are asked for, by fingerprint
  std::vector<std::string> short_names;
  std::size_t statements = 0;          ///< that would do if one of these keys had signed
  std::set<std::string> unverifiable;  ///< why no signature of some key can be verified here
};

Count count(const Demand& rule, const Candidate& what, const std::vector<Attestation>& list) {
  Count count;
  std::vector<const Attestation*> fitting;
  for (const Attestation& each : list) {
    if (fits(each, *rule.kind, what, rule.gpus)) fitting.push_back(&each);
  }
  count.statements = fitting.size();
  for (const std::string& pem : rule.requirement->keys) {
    const trust::Key key = required_key(pem);
    const std::string id = trust::fingerprint(key);
    count.short_names.push_back(id.substr(0, 12));
    if (const std::string why = why_not_verifiable(key); !why.empty()) {
      count.unverifiable.insert(why);
    }
    const bool signed_it = std::ranges::any_of(
        fitting, [&](const Attestation* each) { return attest::signed_by(each->envelope, key); });
    if (signed_it) count.signers.insert(id);
  }
  return count;
}

[[noreturn]] void fail(const Demand& rule, const Candidate& what, const Count& found,
                       const std::string& registry, const std::vector<std::string>& ignored) {
  std::string statement(rule.kind->word);
  if (statement == "tests") {
    statement += " (of library " + library_file(what.package->config).digest.brief() +
                 (rule.gpus.empty() ? "" : " on " + join(rule.gpus)) + ")";
  }
  std::vector<std::string> signers;
  for (const std::string& id : found.signers) signers.push_back(id.substr(0, 12));
  std::string text = "verify " + what.label + ": found the statement " + statement + " of " +
                     (signers.empty() ? "none" : join(signers)) + " of the keys " +
                     join(found.short_names) + ", expected " +
                     std::to_string(rule.requirement->threshold) + " of them (index " +
                     what.index.digest.brief() + " of " + registry + "; " +
                     std::to_string(found.statements) + " such statements there";
  for (const std::string& each : found.unverifiable) text += "; " + each;
  for (const std::string& each : ignored) text += "; " + each;
  throw Error(ErrorCode::kTrust,
              printable(text) +
                  "); nothing was loaded. Ask its publisher for the statement, or see "
                  "what you require: 'kiln trust list'");
}

}  // namespace

trust::Key required_key(const std::string& pem) {
  if (const std::optional<trust::Key> key = trust::key_in_pem(pem)) return *key;
  throw Error(ErrorCode::kUsage,
              "read trust " + trust_path().string() +
                  ": a key that it requires is not a public key in PEM. Write it "
                  "anew with 'kiln trust require'");
}

std::vector<std::string> known_signers(const attest::Attestation& one, const Settings& settings,
                                       const std::string& registry, const std::string& package) {
  std::set<std::string> signers;
  for (const Requirement& each : settings.trust.required) {
    if (!each.covers(registry, package)) continue;
    for (const std::string& pem : each.keys) {
      const trust::Key key = required_key(pem);
      if (attest::signed_by(one.envelope, key)) signers.insert(trust::fingerprint(key));
    }
  }
  return {signers.begin(), signers.end()};
}

void SignaturePolicy::check(const Candidate& what, const Ask& ask) const {
  std::vector<Demand> open;
  for (const Requirement& each : settings_.trust.required) {
    if (each.covers(registry_, what.name)) open.push_back(read(each, what, settings_));
  }
  if (open.empty()) return;
  SignatureMemo memo(verified_path());
  const auto settle = [&](const std::vector<Attestation>& list) {
    std::erase_if(open, [&](const Demand& each) {
      const bool met =
          memo.knows(each.fact) ||
          (!list.empty() && count(each, what, list).signers.size() >= each.requirement->threshold);
      if (met) memo.learn(each.fact);
      return met;
    });
    return open.empty();
  };
  if (settle({})) return;
  std::vector<Attestation> known = attest::recall_attestations(cache_, what.index);
  if (!settle(known)) {
    const attest::Attestations asked = ask("signatures of " + what.label);
    known = attest::join_attestations(std::move(known), asked.list);
    const bool met = settle(known);
    if (!met) fail(open.front(), what, count(open.front(), what, known), registry_, asked.ignored);
    attest::keep_attestations(cache_, what.index, asked.list);
  }
  memo.save();
}

}  // namespace kiln
