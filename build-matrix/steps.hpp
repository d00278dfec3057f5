// SPDX-License-Identifier: Apache-2.0
//
// Steps: what ninja calls kiln-build back for: one device source through NVRTC, the images' source,
// the inspection and the archive of one variant. Each reads files and writes files, and throws
// Error(kBuild) with the step's name and its subject.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kiln::build {

struct NvrtcStep {
  std::filesystem::path nvrtc;
  std::filesystem::path source;
  std::string name;     ///< of the source, in messages
  std::string subject;  ///< "geglu-mlp cu12.9-sm_90a-x86_64"
  std::string target;
  std::vector<std::filesystem::path> includes;
  std::vector<std::string> options;
  std::filesystem::path out;
  std::filesystem::path log;
  std::filesystem::path depfile;
};
void run_step(const NvrtcStep& step);

struct ImagesStep {
  std::vector<std::filesystem::path> images;
  std::filesystem::path out;
};
void run_step(const ImagesStep& step);

struct InspectStep {
  std::filesystem::path recipe;
  std::filesystem::path library;
  std::filesystem::path cuobjdump;
  std::filesystem::path out;
};
void run_step(const InspectStep& step);

struct PackStep {
  std::filesystem::path recipe;
  std::filesystem::path facts;
  std::filesystem::path library;
  std::filesystem::path package;
  std::filesystem::path license;
  std::vector<std::filesystem::path> logs;
  std::filesystem::path into;
};
void run_step(const PackStep& step);

}  // namespace kiln::build
