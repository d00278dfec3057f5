// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a list of referrers, or as one's manifest. The first byte says as what. Refused by
// name, or a list that reads back as the same, and that a second list only lengthens.
#include "fuzz.hpp"
#include "oci/referrers.hpp"

using namespace kiln;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  if (data[0] % 2 == 1) {
    fuzz::accepts({ErrorCode::kIntegrity}, [&] { parse_referrer(text, "manifest"); });
    return 0;
  }
  ReferrerList list;
  if (!fuzz::accepts({ErrorCode::kIntegrity}, [&] { list = parse_referrers(text, "list"); })) {
    return 0;
  }
  for (const ListedReferrer& each : list) {
    fuzz::require(each.manifest.media_type == kMediaTypeManifest, "a list has manifests alone");
  }
  fuzz::round_trip(
      serialize_referrers(list),
      [](const std::string& again) { return parse_referrers(again, "again"); },
      serialize_referrers);
  const ReferrerList joined = join_referrers(list, list);
  fuzz::require(joined == list, "what is there is not added twice");
  return 0;
}
