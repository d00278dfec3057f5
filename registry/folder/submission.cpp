// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/submission.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "documents/names.hpp"

namespace kiln::registry {

namespace fs = std::filesystem;

std::string Batch::subject() const {
  return label(name, version);
}

std::vector<Batch> read_batches(const std::vector<fs::path>& folders,
                                const std::vector<fs::path>& records, const Progress& progress) {
  std::map<std::pair<std::string, int>, Batch> batches;
  for (const fs::path& folder : folders) {
    for (BuiltVariant& built : read_built(folder)) {
      progress("checked " + built.folder.string());
      Batch& batch = batches[{built.config.name, built.config.version}];
      batch.name = built.config.name;
      batch.version = built.config.version;
      const auto manifest_of = [](const BuiltVariant& each) { return each.variant.manifest; };
      if (std::ranges::find(batch.built, manifest_of(built), manifest_of) != batch.built.end()) {
        continue;  // given twice
      }
      batch.built.push_back(std::move(built));
    }
  }
  const std::vector<TestResult> results = read_records(records);
  std::vector<Batch> list;
  for (auto& [key, batch] : batches) {
    for (const BuiltVariant& built : batch.built) {
      batch.tested.push_back(
          tested_places(results, built.library, batch.subject() + " " + built.variant.id));
    }
    list.push_back(std::move(batch));
  }
  return list;
}

}  // namespace kiln::registry
