// SPDX-License-Identifier: Apache-2.0
//
// Pull API: what a registry folder answers to the requests of the OCI distribution specification
// that read. Under serve, which carries the answers over HTTP; for many clients and for good there
// is export, with a web server. Reads the folder at each request, so that what is published is
// there at once. Safe from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kiln::registry {

struct Answer {
  int status = 200;
  std::string type;
  std::string body;            ///< where `file` is empty
  std::filesystem::path file;  ///< a blob, whose bytes are the answer
  std::uint64_t size = 0;      ///< of the file
  std::string digest;          ///< of a document or blob; empty: of neither
};

/// `path`: "/v2/geglu-mlp/manifests/1". 404 for what is not there, or no such request; throws
/// kIntegrity for a damaged registry.
Answer answer_pull(const std::filesystem::path& registry, std::string_view path);

}  // namespace kiln::registry
