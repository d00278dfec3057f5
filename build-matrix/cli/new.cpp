// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/new/new.hpp"

#include <memory>

#include "base/shell_word.hpp"
#include "build-matrix/cli/verbs.hpp"
#include "documents/json.hpp"
#include "loader/cli/frame/output.hpp"

namespace kiln::build {
namespace {

struct NewWords {
  std::filesystem::path folder;
  bool cpu = false;
  bool cuda = false;
  bool triton = false;
};

int run_new(const NewWords& words) {
  const bool both = !words.cpu && !words.cuda && !words.triton;
  const std::vector<std::string> files =
      write_new_package({words.folder, both || words.cpu, both || words.cuda, words.triton});
  const std::filesystem::path named =
      words.folder.has_filename() ? words.folder : words.folder.parent_path();
  const std::string folder = named.string();
  cli::print_json("new", {{"folder", folder}, {"files", files}});
  for (const std::string& file : files) cli::print("%s/%s\n", folder.c_str(), file.c_str());
  cli::print(
      "It builds as it is. %s/README.md has the commands; the first one:\n"
      "  kiln build %s --here --try\n",
      folder.c_str(),
      shell_word((folder.find('/') == std::string::npos ? "./" : "") + folder).c_str());
  return 0;
}

}  // namespace

void new_verb(cli::Command& command) {
  const auto words = std::make_shared<NewWords>();
  command.option("name", words->folder, "FOLDER", "The package's name, or the path of its folder")
      .required();
  command.flag("--cpu", words->cpu, "For the CPU. Default: --cpu --cuda");
  command.flag("--cuda", words->cuda, "For GPUs, in CUDA C++");
  command.flag("--triton", words->triton, "For GPUs, in Triton: no C++ of theirs");
  command.example("row-scale", "for the CPU and for GPUs");
  command.example("packages/row-scale --cpu", "for the CPU alone");
  command.example("row-scale --triton", "for GPUs, in Triton");
  command.runs([words](const cli::Call&) { return run_new(*words); });
}

}  // namespace kiln::build
