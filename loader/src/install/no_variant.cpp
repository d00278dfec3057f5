// SPDX-License-Identifier: Apache-2.0
#include "install/no_variant.hpp"

#include <algorithm>
#include <vector>

#include "documents/names.hpp"
#include "install/find_index.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxOtherVersions = 8;  // that are tried for a hint

/// "geglu-mlp@3 has a build for this machine", or nothing.
std::string other_version(Selecting& self, Host& host) {
  Source& source = self.source.open(self.name, "versions of " + self.name);
  std::vector<int> versions = source.versions(self.name);
  std::reverse(versions.begin(), versions.end());
  std::size_t tried = 0;
  for (const int version : versions) {
    if (version == self.request.version) continue;
    if (++tried > kMaxOtherVersions) break;
    try {
      const Document document = source.index(self.name, version);
      const Index index = read_index(document.bytes, self.name, version, self.source.registry());
      look_up_libraries(self.request, host, index);
      Selection selection = selection_of(self.request);
      selection.variant.clear();
      const Resolution resolution = resolve(host, index, selection);
      if (resolution.chosen) {
        return label(self.name, version) +
               " has a build for this machine: " + index.variants[*resolution.chosen].id +
               ". Ask for version " + std::to_string(version);
      }
    } catch (const Error& error) {
      // An index that this Kiln cannot read is no help; a registry that is gone has no answer.
      if (error.code() == ErrorCode::kNetwork) throw;
    }
  }
  return {};
}

}  // namespace

std::string no_variant_text(Selecting& self, Host& host, const std::string& not_asked) {
  const Resolution& resolution = self.selected.resolution;
  std::string text = "resolve " + label(self.name, self.request.version) +
                     ": no variant fits this machine (index " +
                     self.selected.descriptor.digest.brief() + " of " + self.source.registry() +
                     ")\n" + resolution.explain();
  const auto add_line = [&](const std::string& line) {
    if (line.empty() || text.find(line) != std::string::npos) return;
    if (!text.empty() && text.back() != '\n') text += '\n';
    text += line;
  };
  add_line(resolution.hint);
  if (!self.request.fallback.empty()) return text;  // the caller knows what to try instead
  if (!not_asked.empty()) {
    add_line("the registry was not asked for newer builds: " + not_asked);
    return text;
  }
  try {
    add_line(other_version(self, host));
  } catch (const Error& error) {
    add_line("the registry was not asked for other versions: " + std::string(error.what()));
  }
  return text;
}

}  // namespace kiln
