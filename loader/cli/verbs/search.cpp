// SPDX-License-Identifier: Apache-2.0
#include "install/catalog.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

constexpr std::size_t kMostTold = 8;

int run_search(const std::vector<std::string>& words, const Options& options) {
  const SearchResult result = kiln::search(options.request, words);
  Json documents = Json::array();
  const auto title = [](const FoundPackage& each) {
    return each.version == 0 ? each.name : label(each.name, each.version);
  };
  std::size_t column = 0;
  int status = 0;
  for (const FoundPackage& each : result.packages) column = std::max(column, title(each).size());
  for (const FoundPackage& each : result.packages) {
    documents.push_back({{"name", each.name},
                         {"version", each.version == 0 ? Json() : Json(each.version)},
                         {"variants", each.variants},
                         {"summary", each.summary},
                         {"problem", each.problem ? each.problem->what() : ""}});
    const std::string says =
        each.problem ? std::string("not readable: ") + each.problem->what() : each.summary;
    print("%-*s  %s\n", static_cast<int>(column), title(each).c_str(), says.c_str());
    if (status == 0 && each.problem) status = static_cast<int>(each.problem->code());
  }
  Json unread = Json::array();
  for (const UnreadPublisher& each : result.unread) {
    unread.push_back({{"publisher", each.role}, {"problem", each.problem.what()}});
    if (unread.size() <= kMostTold) {
      tell("kiln: what %s publishes is not known: %s\n", printable(each.role).c_str(),
           each.problem.what());
    }
  }
  if (unread.size() > kMostTold) {
    tell("kiln: nor what %zu other publishers do\n", unread.size() - kMostTold);
  }
  if (status == 0 && !result.unread.empty()) {
    status = static_cast<int>(result.unread.front().problem.code());
  }
  print_json("search", {{"registry", result.registry},
                        {"signed", result.is_signed},
                        {"packages", documents},
                        {"unread", unread},
                        {"left_out", result.left_out}});
  if (options.json) return status;
  tell("%zu %s in %s%s\n", result.packages.size(),
       result.packages.size() == 1 ? "package" : "packages", result.registry.c_str(),
       result.is_signed ? ", by its signed metadata" : "");
  if (result.left_out > 0) {
    tell("kiln: %zu more were not looked into; ask for them by name: kiln info NAME\n",
         result.left_out);
  }
  return status;
}

}  // namespace

void search(KernelCommand& command) {
  const auto words = std::make_shared<std::vector<std::string>>();
  command.option("word", *words, "WORD", "Words that the name or the summary must have");
  command.takes_registry();
  command.takes_cache();
  command.example("", "every package, its newest version and what it computes");
  command.example("mlp gradient", "those that have both words");
  command.runs([words](const Options& options) { return run_search(*words, options); });
}

}  // namespace kiln::cli
