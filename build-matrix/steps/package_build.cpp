// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/package_build.hpp"

#include <algorithm>
#include <iterator>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/codegen/codegen.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/codegen/ops_stub.hpp"
#include "documents/choices.hpp"
#include "documents/descriptor.hpp"
#include "kiln/error.hpp"

namespace kiln::build {

namespace fs = std::filesystem;

namespace {

// Where the headers of a package, or of a folder beside it, are looked for.
std::vector<fs::path> headers_of(const fs::path& folder) {
  return {folder / "csrc", folder};
}

/// Whether there is such a file, which a package may leave out. Who reads a version takes it for
/// text, and no compiler reads it before.
bool has_text(const fs::path& file, const std::string& package) {
  if (!stands(file, &fail_file)) return false;
  NamedFile read = read_named_file(file, kMaxDocumentBytes);
  if (read.problem.empty() && !is_utf8(read.text)) read.problem = "it is not UTF-8";
  if (read.problem.empty()) return true;
  throw Error(ErrorCode::kBuild, "build " + package + ": read " + file.string() + ": " +
                                     read.problem + "; expected a file of text in UTF-8, at most " +
                                     std::to_string(kMaxDocumentBytes) +
                                     " bytes. Correct it, or take it away");
}

}  // namespace

std::string Owner::name_of(const fs::path& source) const {
  std::string file = source.lexically_relative(folder).string();
  if (file.starts_with("../")) file.erase(0, 2);
  std::ranges::replace(file, '/', '+');  // which no source's path has
  return file;
}

PackageFiles::PackageFiles(const Job& job, const Places& places, Sources& sources)
    : job_(job),
      places_(places),
      sources_(sources),
      exports_(generate_exports(job.package)),
      common_{places.sdk / "include", places.abi, places.work() / "include"} {
  const fs::path work = places.work() / job.package.name;
  const fs::path gen = work / "gen";
  ops_header_ = work / ops_header_path(job.package);
  ops_stub_ = work / ops_stub_path(job.package);
  write_if_changed(gen / "package.gen.hpp", generate_header(job.package));
  write_if_changed(ops_header_, generate_ops_header(job.package));
  write_if_changed(ops_stub_, generate_ops_stub(job.package));
  write_if_changed(gen / "exports.map", exports_);
  headers_ = headers_of(job.folder);
  headers_.push_back(gen);
  std::ranges::copy(common_, std::back_inserter(headers_));
  prefixes_ = {{places.sdk, "sdk"}, {places.abi, "abi"}, {places.work(), "work"}};
  folders_ = {{job.folder, job.package.name}};
  for (const std::string& name : job.package.shared_folders()) share(name);
  collect_dev();
}

fs::path PackageFiles::path_of(const std::string& source) const {
  return (job_.folder / source).lexically_normal();
}

std::string PackageFiles::portable_name(const fs::path& path) const {
  const std::pair<fs::path, std::string> roots[] = {{job_.folder, "package"},
                                                    {places_.sdk, "sdk"},
                                                    {places_.abi, "abi"},
                                                    {places_.work() / job_.package.name, "work"},
                                                    {places_.work() / "include", "dlpack"},
                                                    {job_.folder.parent_path(), "packages"}};
  for (const auto& [root, name] : roots) {
    const fs::path inside = below(root, path);
    if (!inside.empty()) return name + "/" + inside.string();
  }
  return "elsewhere/" + path.filename().string();
}

const Owner& PackageFiles::find_owner(Owners& known, const fs::path& source, const Paths& headers,
                                      const Paths& common) {
  const auto found = known.find(source);
  if (found != known.end()) return found->second;
  auto candidates = folders_;
  candidates.emplace_back(places_.sdk, "kiln.sdk");  // no package has a name with a dot
  if (!places_.check.empty()) candidates.emplace_back(places_.check, "kiln.check");
  const std::set<fs::path> read = sources_.closure({source}, headers);
  for (const auto& candidate : candidates) {
    const auto is_there = [&](const fs::path& path) {
      const auto has_it = [&](const fs::path& folder) { return !below(folder, path).empty(); };
      return has_it(candidate.first) || std::ranges::any_of(common, has_it);
    };
    if (below(candidate.first, source).empty() || !std::ranges::all_of(read, is_there)) continue;
    Owner owner{.name = candidate.second, .folder = candidate.first};
    std::ranges::copy_if(headers, std::back_inserter(owner.headers), is_there);
    owner.prefixes = prefixes_;
    owner.prefixes.push_back(candidate);
    return known.emplace(source, std::move(owner)).first->second;
  }
  return known.emplace(source, own(headers)).first->second;
}

Owner PackageFiles::own(const Paths& headers) const {
  Owner package{job_.package.name, job_.folder, headers, prefixes_};
  std::ranges::copy(folders_, std::back_inserter(package.prefixes));
  return package;
}

const Owner& PackageFiles::owner_of_image(const fs::path& source) {
  Paths headers;
  for (const auto& package : folders_) {
    std::ranges::copy(headers_of(package.first), std::back_inserter(headers));
  }
  return find_owner(images_, source, headers, {});
}

const Owner& PackageFiles::owner_of_object(const fs::path& source) {
  return find_owner(objects_, source, headers_, common_);
}

const Owner& PackageFiles::owner_of_check(const fs::path& source) {
  Paths common = {places_.check / "include", places_.loader, places_.loader / "core"};
  Paths headers = common;
  headers.push_back(places_.work() / job_.package.name / "include");
  for (const auto& package : folders_) {
    for (const char* of : {"include", "tests"}) headers.push_back(package.first / of);
  }
  std::ranges::copy(headers_, std::back_inserter(headers));
  std::ranges::copy(common_, std::back_inserter(common));
  return find_owner(checks_, source, headers, common);
}

void PackageFiles::share(const std::string& name) {
  const fs::path folder = job_.folder.parent_path() / name;
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::kBuild, "build " + job_.package.name + ": it shares sources of " + name +
                                       ", and there is no " + folder.string() +
                                       "; put that folder beside it");
  }
  std::ranges::copy(headers_of(folder), std::back_inserter(headers_));
  folders_.emplace_back(folder, name);
}

// What a user of the package writes programs against: its own headers, those that they include
// of the folders whose sources it shares, its Python modules, its card and
// the choices that it leaves to kiln tune. None of it is an ingredient of a library.
void PackageFiles::collect_dev() {
  std::vector<fs::path> folders;
  for (const auto& [folder, name] : folders_) folders.push_back(folder / "include");
  std::vector<fs::path> own;
  if (fs::is_directory(folders.front())) {
    for (const fs::directory_entry& each : fs::recursive_directory_iterator(folders.front())) {
      if (each.is_regular_file()) own.push_back(each.path());
    }
  }
  for (const fs::path& header : sources_.closure(own, folders)) {
    for (const fs::path& folder : folders) {
      const fs::path inside = below(folder, header);
      if (inside.empty()) continue;
      dev_.emplace("include/" + inside.generic_string(), header);
      break;
    }
  }
  dev_[ops_header_path(job_.package)] = ops_header_;  // not the folder's, which may be older
  dev_[ops_stub_path(job_.package)] = ops_stub_;
  for (const std::string& module : job_.package.python) {
    dev_.emplace("python/" + fs::path(module).filename().string(), path_of(module));
  }
  for (const char* name : {"CARD.md", kChoicesFile}) {
    if (has_text(job_.folder / name, job_.package.name)) dev_.emplace(name, job_.folder / name);
  }
}

fs::path PackageBuild::folder_of(const VariantPlan& plan) const {
  return places.work() / job.package.name / plan.id;
}

std::string PackageBuild::in_work(const fs::path& path) const {
  return path.lexically_relative(places.work()).string();
}

}  // namespace kiln::build
