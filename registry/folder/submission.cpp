// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/submission.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "documents/names.hpp"

namespace kiln::registry {

namespace fs = std::filesystem;

std::string Submission::subject() const {
  return label(name, version);
}

std::vector<Submission> read_submissions(const std::vector<fs::path>& folders,
                                         const std::vector<fs::path>& records,
                                         const Progress& progress) {
  std::map<std::pair<std::string, int>, Submission> submissions;
  for (const fs::path& folder : folders) {
    for (BuiltVariant& built : read_build_output(folder)) {
      progress("checked " + built.folder.string());
      Submission& submission = submissions[{built.config.name, built.config.version}];
      submission.name = built.config.name;
      submission.version = built.config.version;
      const auto manifest_of = [](const BuiltVariant& each) { return each.variant.manifest; };
      if (std::ranges::find(submission.built, manifest_of(built), manifest_of) !=
          submission.built.end()) {
        continue;  // given twice
      }
      submission.built.push_back(std::move(built));
    }
  }
  const std::vector<TestResult> results = read_records(records);
  std::set<Digest> libraries;
  for (const auto& [key, submission] : submissions) {
    for (const BuiltVariant& built : submission.built) libraries.insert(built.library);
  }
  for (const fs::path& file : records) {
    const bool counts = std::ranges::any_of(results, [&](const TestResult& each) {
      return each.file == file && libraries.contains(each.library);
    });
    if (counts) continue;
    progress("record " + file.string() +
             " counts for nothing here: it speaks of other bytes than these builds have");
  }
  std::vector<Submission> list;
  for (auto& [key, submission] : submissions) {
    for (const BuiltVariant& built : submission.built) {
      submission.tested.push_back(
          tested_places(results, built.library, submission.subject() + " " + built.variant.id));
    }
    list.push_back(std::move(submission));
  }
  return list;
}

}  // namespace kiln::registry
