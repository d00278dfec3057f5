// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as trust metadata, as the artifact that carries it, and as trust.json. The first byte
// says as what. Refused by name, or a document whose signed part reads back as the same.
#include <nlohmann/json.hpp>

#include "documents/json.hpp"
#include "fuzz.hpp"
#include "settings/trust_file.hpp"
#include "trust/canonical.hpp"
#include "trust/metadata.hpp"
#include "trust/repository_source.hpp"
#include "trust/trusted_set.hpp"

namespace {

using namespace kiln;

template <class Document>
void read(const std::string& text) {
  std::string canonical;
  const bool taken = fuzz::accepts(
      {ErrorCode::kTrust}, [&] { canonical = trust::parse<Document>(text, "metadata").canonical; });
  // Canonical JSON has control characters as they are, which JSON forbids.
  if (!taken || canonical.find_first_of(std::string("\0\n\r\t\b\f", 6)) != std::string::npos)
    return;
  fuzz::accepts({ErrorCode::kIntegrity}, [&] {
    fuzz::require(trust::canonical_json(parse_json(canonical, "canonical")) == canonical,
                  "the canonical spelling is one: " + canonical);
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  switch (data[0] % 7) {
    case 0:
      read<trust::Root>(text);
      break;
    case 1:
      read<trust::Timestamp>(text);
      break;
    case 2:
      read<trust::Snapshot>(text);
      break;
    case 3:
      read<trust::Targets>(text);
      break;
    case 4:
      fuzz::accepts({ErrorCode::kTrust}, [&] { trust::TrustedSet(text, "a registry", {}); });
      break;
    case 5:
      fuzz::accepts({ErrorCode::kIntegrity},
                    [&] { trust::parse_trust_manifest(text, "manifest"); });
      break;
    default:
      fuzz::accepts({ErrorCode::kUsage}, [&] {
        const Trust trust = parse_trust(text, "trust.json");
        fuzz::require(parse_trust(serialize_trust(trust), "again") == trust,
                      "trust.json reads back");
      });
  }
  return 0;
}
