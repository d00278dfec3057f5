// SPDX-License-Identifier: Apache-2.0
#include "documents/descriptor.hpp"

#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln {

Json to_json(const Descriptor& descriptor) {
  return {{"mediaType", descriptor.media_type},
          {"digest", descriptor.digest.str()},
          {"size", descriptor.size}};
}

Descriptor parse_descriptor(const JsonView& json) {
  Descriptor descriptor{.media_type = json.at("mediaType").string(),
                        .size = json.at("size").unsigned_integer()};
  const JsonView digest = json.at("digest");
  try {
    descriptor.digest = Digest::parse(digest.string());
  } catch (const Error& error) {
    throw Error(error.code(), digest.path() + ": " + error.what());
  }
  return descriptor;
}

}  // namespace kiln
