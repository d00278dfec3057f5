// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/new/new.hpp"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <map>
#include <string_view>
#include <utility>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "new_files.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

using Words = std::map<std::string, std::string>;

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
}

/// A template with its words filled in. A line that begins "@cpu@", "@cuda@" or "@triton@" stays
/// where that is asked for.
std::string filled(std::string_view text, const NewPackage& package, const Words& words) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    bool wanted = true;
    for (const auto& [mark, asked] : {std::pair<std::string_view, bool>{"@cpu@", package.cpu},
                                      {"@cuda@", package.cuda},
                                      {"@triton@", package.triton}}) {
      if (!line.starts_with(mark)) continue;
      line.remove_prefix(mark.size());
      wanted = asked;
    }
    if (wanted) result += line;
  }
  for (const auto& [word, value] : words) replace_all(result, "@" + word + "@", value);
  return result;
}

/// A word that package.json and C++ can have.
std::string checked_name(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (!is_package_name(name)) {
    throw Error(ErrorCode::kUsage, "new " + quote(name) +
                                       ": not a package name; expected words of a-z and 0-9 joined "
                                       "by '-'. Name it like row-scale");
  }
  const std::string word = underscored(name);
  if (const std::string wrong = why_not_identifier(word); !wrong.empty()) {
    throw Error(ErrorCode::kUsage,
                "new " + name + ": \"" + word + "\" " + wrong +
                    ". Take a name that begins with a letter, has at most 32 characters and is "
                    "not a word of C++");
  }
  if (name == "none") {
    throw Error(ErrorCode::kUsage,
                "new none: its layer would be the class None, which Python keeps for itself. Take "
                "another name");
  }
  return name;
}

[[noreturn]] void fail_taken(const std::string& name, const fs::path& folder) {
  throw Error(ErrorCode::kConflict, "new " + name + ": " + folder.string() +
                                        " is there already; nothing was written. Take another "
                                        "name, or remove it");
}

}  // namespace

std::vector<std::string> write_new_package(const NewPackage& package) {
  fs::path folder = fs::absolute(package.folder).lexically_normal();
  if (!folder.has_filename())
    folder = folder.parent_path();  // "row-scale/", as a shell completes it
  const std::string name = checked_name(folder);
  const bool gpu = package.cuda || package.triton;
  if (!package.cpu && !gpu) {
    throw Error(ErrorCode::kUsage, "new " + name + ": neither CPU nor GPU is asked for");
  }
  if (package.cuda && package.triton) {
    throw Error(ErrorCode::kUsage,
                "new " + name + ": GPU code is CUDA C++ or Triton; ask for one of them");
  }
  if (fs::exists(fs::symlink_status(folder))) fail_taken(name, folder);
  const std::string word = underscored(name);
  const Words words = {{"NAME", name},
                       {"WORD", word},
                       {"CLASS", camel_case(name)},
                       {"NAMESPACE", ops_namespace(name)}};
  std::map<std::string, const char*> files = {{"package.json", kNewPackageJson},
                                              {"CARD.md", kNewCard},
                                              {"README.md", kNewReadme},
                                              {"python/" + word + ".py", kNewPython},
                                              {"tests/CMakeLists.txt", kNewCMakeLists},
                                              {"tests/check.cpp", kNewCheck}};
  if (package.cpu) {
    files["csrc/cpu.cpp"] = kNewCpu;
  }
  if (package.cuda) {
    files["csrc/gpu.cpp"] = kNewGpu;
    files["csrc/smxx_forward.cu"] = kNewKernel;
  }
  if (package.triton) files["csrc/kernels.py"] = kNewTriton;
  // Whole or not at all: under a hidden name first, which no command takes for a package.
  const fs::path draft = folder.parent_path() / draft_name();
  try {
    std::vector<std::string> written;
    for (const auto& [file, text] : files) {
      write_file(draft / file, filled(text, package, words));
      written.push_back(file);
    }
    const Package parsed =
        parse_package(filled(kNewPackageJson, package, words), name, name + "/package.json");
    written.push_back(ops_header_path(parsed));
    write_file(draft / written.back(), generate_ops_header(parsed));
    if (::renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, folder.c_str(), RENAME_NOREPLACE) != 0) {
      if (errno == EEXIST) fail_taken(name, folder);
      fail_file("rename to", folder, errno);
    }
    return written;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(draft, ignored);
    throw;
  }
}

}  // namespace kiln::build
