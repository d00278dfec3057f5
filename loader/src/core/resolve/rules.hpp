// SPDX-License-Identifier: Apache-2.0
//
// Rules: what a variant needs against what a machine has, as a table of rules, and by what of two
// variants that pass them all one is taken. The inner part of resolve. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "documents/variant.hpp"
#include "resolve/resolve.hpp"

namespace kiln {

/// One machine, one request.
struct Question {
  const Host* host = nullptr;
  const Selection* selection = nullptr;
  Device device;  ///< never automatic
  /// What the variant has to run on, one GPU for each capability: the one asked for, or all of the
  /// machine. Empty for the CPU.
  std::vector<const Gpu*> gpus;
  /// A GPU was asked for, and there is none to look at: why, and what to do. Nothing fits then.
  std::string no_gpu;
  std::vector<Digest> denied;  ///< the digests on the deny list
};

/// Puts the request against the machine. Throws what resolve throws. Keeps pointers to `host` and
/// `selection`.
Question ask(const Host& host, const Index& index, const Selection& selection);

/// The best piece of a variant's device code for a GPU. Smaller is better.
struct Fit {
  enum class Kind { kExact, kFamily, kSameSm, kLowerMinor, kPtx, kCpu, kNone };
  Kind kind = Kind::kNone;
  DeviceCode code;
};

/// Among the code that runs with this driver; of several GPUs, on the one that it fits least.
/// kNone if there is a GPU that no code runs on; kCpu for a CPU variant.
Fit best_fit(const Variant& variant, const Question& question);

/// One row of the table, in the order of Refusal.
struct Rule {
  Refusal refusal;
  bool (*holds)(const Variant&, const Fit&, const Question&);
  /// What is needed and what was found, whether it holds or not.
  std::string (*describe)(const Variant&, const Fit&, const Question&);
};
extern const std::array<Rule, 10> kRules;

/// Whether the rule was held against the machine. Of a GPU's driver and code it was not where the
/// request has no GPU.
bool is_asked(Refusal rule, const Variant& variant, const Question& question);

/// The first rule that this variant breaks; none if it fits.
const Rule* first_broken(const Variant& variant, const Fit& fit, const Question& question);

/// The sonames that a choice depends on: those of the variants that only a missing library could
/// still refuse. Of other variants' libraries nothing has to be known. Throws what resolve throws.
std::vector<std::string> deciding_libraries(const Host& host, const Index& index,
                                            const Selection& selection);

/// All of them: what stands in the way of a variant. A variant for a newer Kiln breaks that rule
/// alone, as its needs are not known.
std::vector<const Rule*> all_broken(const Variant& variant, const Fit& fit,
                                    const Question& question);

/// What would lift each thing that the caller or the settings rule out of it.
std::string policy_remedy(const Variant& variant, const Fit& fit, const Question& question);

/// "sm_90a, for exactly this GPU": how the code of a variant that fits does so.
std::string describe_fit(const Variant& variant, const Fit& fit, const Question& question);

/// Which compute capabilities run it, where the driver does: "8.x from 8.0", "9.0 only", "the
/// family of 10.0", ">= 8.0".
std::string runs_on(const DeviceCode& code);

/// The lowest driver with which one of the variant's pieces of code runs on this GPU; none if no
/// driver makes it run.
std::optional<Version> driver_needed(const Variant& variant, Version capability);

/// A GPU of the question that no driver makes this variant run on; null if there is none.
const Gpu* find_uncovered(const Variant& variant, const Question& question);

bool is_denied(const Variant& variant, const Question& question);

/// By what one of two variants stands before the other: the first of these in which they differ.
/// The position in the index has no part in it.
enum class RankRule {
  kPasses,     ///< the first rule that it breaks is a later one, or none
  kCode,       ///< exact 'a', family 'f', this SM, a lower minor revision, PTX
  kCloseness,  ///< the code's capability, closest to the GPU's
  kToolkit,    ///< the newer toolkit, be the driver older: it runs the code of its whole major
  kCpuLevel,   ///< the higher level
  kId,         ///< by the alphabet
  kDigest,
};

/// What is compared: the smaller one is the better variant. Refers to the variant.
struct Rank {
  std::array<int, 5> numbers;  ///< for each RankRule up to kCpuLevel
  std::string_view id;
  std::string_view digest;

  auto operator<=>(const Rank&) const = default;
};
Rank rank_of(const Variant& variant, const Fit& fit, Refusal refusal);

RankRule deciding_rule(const Rank& left, const Rank& right);

/// "its code is closer to the GPU": why the one that wins by this rule stands first.
std::string_view describe(RankRule rule);

}  // namespace kiln
