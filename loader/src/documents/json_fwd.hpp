// SPDX-License-Identifier: Apache-2.0
//
// Json, by name alone, for headers that take or return it: documents/json.hpp, which reads all of
// nlohmann/json, is for sources.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace kiln {

using Json = nlohmann::json;
class JsonView;

}  // namespace kiln
