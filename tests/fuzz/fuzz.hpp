// SPDX-License-Identifier: Apache-2.0
//
// Fuzz: what each target asks of a reader beyond not crashing. A target is one
// LLVMFuzzerTestOneInput over one reader; libFuzzer, AddressSanitizer and UBSan watch it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kiln/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kiln::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the process, which libFuzzer counts as a crash and keeps the input of.
inline void require(bool condition, const std::string& promise) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", promise.c_str());
  std::abort();
}

/// Runs `read`, which may only throw Error with one of these codes and a text that a terminal can
/// show. Whether it threw nothing.
template <class Read>
bool accepts(std::initializer_list<ErrorCode> codes, Read read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    const std::string text = error.what();
    require(std::find(codes.begin(), codes.end(), error.code()) != codes.end(),
            "refused with " + std::string(to_string(error.code())) + ": " + text);
    require(text.size() < 4096, "an error is short, and does not carry its document");
    const bool printable = std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return c == '\n' || (c >= 0x20 && c != 0x7f);
    });
    require(printable, "an error holds no control byte");
    return false;
  }
}

/// What was read is written, read and written again: both texts must be the same.
template <class Parse, class Serialize>
void round_trip(const std::string& first, Parse parse, Serialize serialize) {
  std::string second;
  const bool read = accepts({}, [&] { second = serialize(parse(first)); });
  require(read && first == second, "what is written reads back as itself: " + first);
}

}  // namespace kiln::fuzz
