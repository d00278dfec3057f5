// SPDX-License-Identifier: Apache-2.0
#include "registry/site/write.hpp"

#include <string_view>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "registry/folder/layout.hpp"
#include "registry/site/pages.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxPageBytes = std::uint64_t{64} << 20;

void check_text(std::string_view text, const std::string& option) {
  if (printable(text) == text) return;
  throw Error(ErrorCode::kUsage, "site: " + option + " " + quote(text) +
                                     " has characters that are not printable; nothing was written");
}

}  // namespace

SiteReport write_site(const SiteRequest& request, const Progress& progress) {
  check_is_path(request.out, "write a site into");
  check_text(request.title, "--title");
  check_text(request.url, "--url");
  check_is_outside(request.out, request.registry, "site");
  SiteFacts site = gather_site(request.registry, progress);
  site.title = request.title;
  site.url = request.url;
  SiteReport report;
  report.packages = site.packages.size();
  report.problems = site.problems;
  for (const PackageFacts& package : site.packages) {
    report.versions += package.versions.size();
    for (const VersionFacts& version : package.versions) {
      for (const std::string& problem : version.problems) {
        report.problems.push_back(label(package.name, version.version) + ": " + problem);
      }
    }
  }
  sweep_drafts_below(request.out);
  for (const auto& [name, bytes] : make_pages(site)) {
    const fs::path to = request.out / name;
    make_folders(to.parent_path());
    ++report.files;
    if (fs::exists(to) && read_document(to, kMaxPageBytes) == bytes) continue;
    publish_bytes(to.parent_path(), to, bytes, 0644);
    ++report.written;
  }
  return report;
}

}  // namespace kiln::registry
