// SPDX-License-Identifier: Apache-2.0
//
// What choices.json of the packages leaves to `kiln tune`: every kernel for SM 9.0, each with what
// may follow its name, and nothing that pins.h does not read.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "host/pins.h"
#include "plan_paths.hpp"

namespace gated_mlp {
namespace {

/// Of some shape, at least, of up to 64 rows.
bool can_be(bool gated, const Sm90Choice& choice) {
  GemmShape shape;
  shape.gated = gated;
  shape.m = 64;
  shape.n = shape.k = 4096;
  return why_not_sm90(shape, choice) == nullptr;
}

std::string word_of(bool gated, const Sm90Choice& choice) {
  std::string word = std::string(gated ? "gated=" : "down=") + sm90_tile(gated, choice.tile).name;
  if (choice.parts > 1) word += "," + std::to_string(choice.parts);
  return choice.across ? word + ",across" : word;
}

TEST_CASE("choices.json has every kernel that a call may pin") {
  for (const char* package : {"geglu-mlp", "swiglu-mlp"}) {
    std::ifstream file(std::string(kiln::paths::kPackages) + "/" + package + "/choices.json");
    const auto json = nlohmann::json::parse(file);
    const auto& op = json.at("ops").at(0);
    CHECK(op.at("attribute") == "kernels");
    for (const bool gated : {true, false}) {
      std::set<std::string> offered;
      for (const std::string word : op.at("parts").at(gated ? 0 : 1)) {
        CAPTURE(word);
        CHECK(offered.insert(word).second);
        Pins pins;
        char text[256] = "";
        CHECK(read_pins(word.c_str(), {.forward = true}, &pins, {text, sizeof text}));
        CHECK(pins.of(gated ? Pinned::kGated : Pinned::kDown) != nullptr);
      }
      std::set<std::string> known;
      for (int tile = 0; tile < sm90_tile_count(gated); ++tile) {
        for (const int64_t parts : kSm90Parts) {
          for (const bool across : {false, true}) {
            const Sm90Choice choice = {tile, parts, across};
            if (can_be(gated, choice)) known.insert(word_of(gated, choice));
          }
        }
      }
      CHECK(offered == known);
    }
  }
}

}  // namespace
}  // namespace gated_mlp
