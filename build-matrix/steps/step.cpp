// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/step.hpp"

#include <utility>

#include "base/quote.hpp"
#include "kiln/error.hpp"

namespace kiln::build {

std::string made(const std::string& name) {
  return std::string(kOut) + "/" + name;
}

void StepList::add(Step step) {
  for (const std::string& name : step.outputs) {
    const auto [maker, is_new] = makers_.emplace(step.folder / name, list.size());
    if (is_new) continue;
    const Step& other = list[maker->second];
    if (other == step) return;
    throw Error(ErrorCode::kBuild, "build: " + maker->first.string() + " would be made twice, as " +
                                       other.what + " and as " + step.what +
                                       ", of other files or by another command. Build their "
                                       "packages one after the other, each with an --out of its "
                                       "own");
  }
  list.push_back(std::move(step));
}

std::vector<std::filesystem::path> parse_read_list(std::string_view text) {
  std::vector<std::filesystem::path> files;
  std::string file;
  const auto end_file = [&] {
    if (!file.empty()) files.emplace_back(std::move(file));
    file.clear();
  };
  std::size_t at = text.find(": ");
  at = at == std::string_view::npos ? text.size() : at + 2;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if ((c == '\\' && (next == ' ' || next == '#')) || (c == '$' && next == '$')) {
      file += text[++at];
    } else if (c == ' ' || c == '\n' || (c == '\\' && next == '\n')) {
      end_file();
    } else {
      file += c;
    }
  }
  end_file();
  return files;
}

std::string explain_undefined(std::string_view said) {
  constexpr std::string_view kUndefined = "undefined symbol: ";
  const std::size_t at = said.find(kUndefined);
  if (at == std::string_view::npos) return "";
  std::string_view symbol = said.substr(at + kUndefined.size());
  symbol = symbol.substr(0, symbol.find_first_of("\r\n"));
  const std::string shown = printable(symbol.substr(0, 200));
  for (const std::string_view runtime :
       {"operator new", "operator delete", "std::", "__cxa_", "__gxx_personality", "_Unwind_",
        "vtable for __cxxabiv1", "__dynamic_cast"}) {
    if (symbol.find(runtime) == std::string_view::npos) continue;
    return shown +
           " is of the C++ runtime, which a package does not have: no exceptions, no new, no "
           "streams, no std:: function that is not in a header. Scratch memory is "
           "call.workspace, errors are sdk::fail; of the standard library take what is all in "
           "headers";
  }
  return shown +
         " is defined by no source of the package. Does package.json list the file that "
         "has it, for the CPU and for GPUs?";
}

}  // namespace kiln::build
