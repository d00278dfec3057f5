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
  return {.media_type = json.at("mediaType").string(),
          .digest = parse_digest(json.at("digest")),
          .size = json.at("size").unsigned_integer()};
}

Digest parse_digest(const JsonView& json) {
  try {
    return Digest::parse(json.string());
  } catch (const Error& error) {
    throw Error(error.code(), json.path() + ": " + error.what());
  }
}

}  // namespace kiln
