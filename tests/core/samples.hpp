// SPDX-License-Identifier: Apache-2.0
//
// Samples: documents and machines that the tests of the pure modules start from, and check_throws,
// which wants both the code and the words of an error.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "documents/variant.hpp"
#include "kiln/error.hpp"
#include "resolve/resolve.hpp"

namespace kiln::test {

/// Needs of a GPU variant: gpu_needs("12.9", "12.0", {"sm_90a"}).
Needs gpu_needs(std::string_view toolkit, std::string_view min_driver,
                const std::vector<std::string>& code, std::string_view cpu = "x86-64");
Needs cpu_needs(std::string_view cpu);

/// A variant with the digest of its id.
Variant variant_of(std::string id, Needs needs);
Index index_of(std::vector<Variant> variants);

Index sample_index();  ///< two GPU variants, one of them with PTX and a library; one CPU variant
VariantManifest sample_manifest();
Config sample_config();  ///< of sample_index's first variant

/// What a test compares: every field, in words.
std::string fields(const Needs& needs);
std::string fields(const Variant& variant);
std::string fields(const Index& index);
std::string fields(const Config& config);

/// An x86-64-v3 machine with glibc 2.36, a driver and a GPU.
Host gpu_host(std::string_view driver, std::string_view capability);
Host cpu_host(std::string_view cpu = "x86-64-v3");

/// Runs `call`, which must throw an Error of this code with all of these words in its text.
template <class Call>
std::string check_throws(ErrorCode code, const std::vector<std::string>& words, Call call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK_MESSAGE(error.code() == code, text);
    for (const std::string& word : words) {
      CHECK_MESSAGE(text.find(word) != std::string::npos, "no '", word, "' in: ", text);
    }
    return text;
  }
  FAIL_CHECK("nothing was thrown");
  return {};
}

}  // namespace kiln::test
