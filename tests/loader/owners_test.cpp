// SPDX-License-Identifier: Apache-2.0
//
// Owners: whose folders and files decide, and how a user vouches for those of others.
#include "settings/owners.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "docs_paths.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "settings/settings.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOtherUser = 64123;  // not the one that runs the tests
constexpr gid_t kOtherGroup = 1002;

TEST_CASE("owners: settings that others may write to, or exchange, are refused with the cure") {
  struct Case {
    const char* name;
    mode_t file;
    mode_t folder;
    uid_t file_owner;
    uid_t folder_owner;
    const char* why;  ///< empty: it counts
    gid_t folder_group = 0;
  };
  const Case cases[] = {
      {"mine", 0644, 0755, 0, 0, ""},
      {"group reads", 0640, 0775, 0, 0, ""},
      {"in a folder like /tmp", 0644, 01777, 0, 0, ""},
      {"everyone", 0646, 0755, 0, 0, "everyone may write to it"},
      {"group", 0664, 0755, 0, 0, "its group may write to it"},
      {"the way", 0644, 0777, 0, 0, "everyone may put another folder in its place"},
      {"another's", 0644, 0755, kOtherUser, 0, "it belongs to user 64123"},
      {"the way is another's", 0644, 0755, 0, kOtherUser, "which belongs to user 64123"},
      {"a group's folder", 0644, 0775, 0, 0, "group 1002 may remove it from", kOtherGroup},
      {"a group's folder like /tmp", 0644, 01775, 0, 0, "", kOtherGroup},
      {"a group that only reads", 0644, 0750, 0, 0, "", kOtherGroup},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    for (const char* name : {"config.json", "trust.json"}) {
      CAPTURE(name);
      const Scratch scratch;
      const fs::path folder = scratch / "kiln";
      const fs::path file = folder / name;
      fs::create_directory(folder);
      const bool settings = file.filename() == "config.json";
      write_file(file, settings ? R"({"schema": "kiln.settings/1", "deny": ["x"]})"
                                : R"({"schema": "kiln.trust/1", "roots": {}, "unsigned": ["/x"]})");
      REQUIRE(::chmod(file.c_str(), each.file) == 0);
      REQUIRE(::chmod(folder.c_str(), each.folder) == 0);
      const bool foreign = each.file_owner != 0 || each.folder_owner != 0 || each.folder_group != 0;
      if (foreign && ::geteuid() != 0) continue;  // only root may
      if (foreign) REQUIRE(::chown(file.c_str(), each.file_owner, 0) == 0);
      if (foreign) REQUIRE(::chown(folder.c_str(), each.folder_owner, each.folder_group) == 0);
      const Environment config("KILN_CONFIG", std::nullopt);
      const Environment home("XDG_CONFIG_HOME", scratch.path().string());
      const auto counts = [&] {
        const Settings read = load_settings();
        CHECK(read.deny.size() == (settings ? 1 : 0));
        CHECK(read.trust.is_unsigned("/x"));
      };
      if (*each.why == '\0') {
        counts();
        continue;
      }
      const Error error = error_of([] { load_settings(); });
      CHECK(error.code() == ErrorCode::kUsage);
      CHECK_CONTAINS(error.what(), each.why);
      CHECK_CONTAINS(error.what(), file.string());
      const Environment vouched("KILN_SAFE_FOLDERS", folder.string() + "/");
      counts();
    }
  }
}

TEST_CASE("owners: a group may not remove settings, but the user's own private group may") {
  if (::geteuid() != 0) return;  // only root may give folders away
  const Scratch scratch;
  const fs::path folder = scratch / "kiln";
  const fs::path behind = scratch / "dotfiles";
  for (const fs::path& each : {folder, behind}) {
    fs::create_directory(each);
    REQUIRE(::chmod(each.c_str(), 0775) == 0);
  }
  const fs::path file = folder / "config.json";
  write_file(behind / "kiln", "{}");
  REQUIRE(::chmod((behind / "kiln").c_str(), 0644) == 0);
  fs::create_symlink(behind / "kiln", file);
  CHECK_FALSE(doubt_about_file(file, "KILN_CONFIG"));
  for (const fs::path& each : {folder, behind}) {  // of the link, and of the file behind it
    REQUIRE(::chown(each.c_str(), 0, kOtherGroup) == 0);
    const std::optional<Doubt> doubt = doubt_about_file(file, "KILN_CONFIG");
    REQUIRE(doubt);
    CHECK_CONTAINS(doubt->why, "group 1002 may remove it from " + each.string());
    CHECK_CONTAINS(doubt->next_step, "chmod g-w " + each.string());
    CHECK(doubt_about_place(file, "KILN_CONFIG"));
    CHECK_FALSE(doubt_about_way(file, "KILN_CACHE"));  // a cache may be a group's
    REQUIRE(::chown(each.c_str(), 0, 0) == 0);
  }
  // Not root: user 64123, in group 64123, as one is made by adduser.
  const pid_t child = ::fork();
  if (child == 0) {
    bool fine = ::chown(folder.c_str(), kOtherUser, kOtherUser) == 0 &&
                ::chmod(scratch.path().c_str(), 0755) == 0 && ::seteuid(kOtherUser) == 0;
    fine = fine && !doubt_about_place(folder / "new.json", "KILN_CONFIG");
    ::_exit(fine ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("owners: a project's file counts whoever shares the project, and nobody's out of /tmp") {
  struct Case {
    const char* name;
    mode_t file;
    mode_t folder;
    uid_t file_owner;
    uid_t folder_owner;
    const char* project;  ///< what is wrong with it as a lock file; empty: it counts
    const char* logins;   ///< the same as a file with logins
  };
  constexpr const char* kAnothers = "it belongs to user 64123";
  constexpr const char* kEveryones = "everyone may write to it";
  const Case cases[] = {
      {"mine", 0644, 0755, 0, 0, "", ""},
      {"a group's", 0664, 0775, 0, 0, "", ""},
      {"in a folder like /tmp", 0644, 01777, 0, 0, "", ""},
      {"another's in a folder like /tmp", 0644, 01777, kOtherUser, 0, kAnothers, kAnothers},
      {"another's in his own folder like /tmp", 0644, 01777, kOtherUser, kOtherUser, kAnothers,
       kAnothers},
      {"another's project", 0644, 0755, kOtherUser, kOtherUser, "", kAnothers},
      {"another's in mine", 0644, 0755, kOtherUser, 0, kAnothers, kAnothers},
      {"mine in another's", 0600, 0755, 0, kOtherUser, "", ""},
      {"everyone's", 0646, 0755, 0, 0, kEveryones, kEveryones},
      {"everyone's folder", 0644, 0777, 0, 0, "everyone may put another file in its place", ""},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const bool foreign = each.file_owner != 0 || each.folder_owner != 0;
    if (foreign && ::geteuid() != 0) continue;  // only root may
    const Scratch scratch;
    const fs::path folder = scratch / "project";
    const fs::path file = folder / "kiln.lock";
    fs::create_directory(folder);
    write_file(file, "{}");
    REQUIRE(::chmod(file.c_str(), each.file) == 0);
    REQUIRE(::chmod(folder.c_str(), each.folder) == 0);
    if (foreign) REQUIRE(::chown(file.c_str(), each.file_owner, 0) == 0);
    if (foreign) REQUIRE(::chown(folder.c_str(), each.folder_owner, 0) == 0);
    const auto holds = [&](const std::optional<Doubt>& doubt, const char* why) {
      CHECK(doubt.has_value() == (*why != '\0'));
      if (doubt) CHECK_CONTAINS(doubt->why, why);
    };
    holds(doubt_about_project_file(file), each.project);
    holds(doubt_about_logins(file), each.logins);
    {
      const Environment vouched("KILN_SAFE_FOLDERS", folder.string());
      holds(doubt_about_project_file(file), "");
      holds(doubt_about_logins(file), "");
    }
    // A link counts as what it leads to, and is asked whose it is.
    const fs::path link = scratch / "link";
    fs::create_symlink(file, link);
    holds(doubt_about_logins(link), each.logins);
    if (!foreign || ::lchown(link.c_str(), kOtherUser, 0) != 0) continue;
    holds(doubt_about_project_file(link), kAnothers);
  }
}

TEST_CASE("owners: a lock file of somebody else's is told with the cure") {
  if (::geteuid() != 0) return;  // only root may give files away
  const Scratch scratch;
  const fs::path file = scratch / "kiln.lock";
  write_file(file, "{}");
  REQUIRE(::chown(file.c_str(), kOtherUser, 0) == 0);
  const Error error = error_of([&] {
    get_kernel("sample", {.device = Device::cpu(), .cache = scratch / "cache", .lock = file});
  });
  CHECK(error.code() == ErrorCode::kLock);
  CHECK_CONTAINS(error.what(), "read lock file " + file.string() + ": it belongs to user 64123");
  CHECK_CONTAINS(error.what(), "set KILN_SAFE_FOLDERS=" + scratch.path().string());
}

TEST_CASE("owners: what the safe folders cover, and that each is absolute") {
  const Environment list("KILN_SAFE_FOLDERS", "/cache:/github/home/");
  for (const char* inside :
       {"/cache", "/cache/kiln", "/cache/./x/..", "/github/home/.cache/kiln"}) {
    CHECK_MESSAGE(is_vouched_for(inside), inside);
  }
  for (const char* outside :
       {"/", "/cache2", "/cach", "/github", "/github/homes", "/cache/../etc"}) {
    CHECK_MESSAGE(!is_vouched_for(outside), outside);
  }
  for (const char* wrong : {"cache", "/cache:./x", "~"}) {
    const Environment bad("KILN_SAFE_FOLDERS", wrong);
    const Error error = error_of([] { is_vouched_for("/x"); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), "read KILN_SAFE_FOLDERS");
  }
}

/// The variables of Kiln that a block of YAML in docs/DEPLOYMENT.md sets: "```yaml github".
std::map<std::string, std::string> variables_of(const std::string& block) {
  const std::string page = read_file(paths::kDeployment);
  const std::size_t begin = page.find("```yaml " + block + "\n");
  REQUIRE(begin != std::string::npos);
  const std::string text = page.substr(begin, page.find("\n```\n", begin) - begin);
  // "KILN_CACHE: /x" and "{name: KILN_CACHE, value: /x}"
  std::map<std::string, std::string> variables;
  for (std::size_t at = text.find("KILN_"); at != std::string::npos; at = text.find("KILN_", at)) {
    const std::size_t end = text.find_first_of(":,", at);
    const std::size_t value = text.find(": ", end) + 2;
    const std::string name = text.substr(at, end - at);
    at = text.find_first_of(" }\n", value);
    variables[name] = text.substr(value, at - value);
  }
  return variables;
}

TEST_CASE("owners: what docs/DEPLOYMENT.md sets for GitHub and Kubernetes gives a usable cache") {
  struct Platform {
    const char* name;
    std::string folder;  ///< as the platform has it
    mode_t mode;
    uid_t owner;
  };
  const Platform platforms[] = {{"github", "/github/home", 0755, kOtherUser},
                                {"kubernetes", "/cache", 0777, 0}};
  for (const Platform& each : platforms) {
    CAPTURE(each.name);
    const Scratch scratch;
    const fs::path folder = scratch / "volume";
    fs::create_directory(folder);
    REQUIRE(::chmod(folder.c_str(), each.mode) == 0);
    if (each.owner != 0 && ::chown(folder.c_str(), each.owner, each.owner) != 0) continue;
    const auto placed = [&](const std::string& path) {
      REQUIRE(path.starts_with(each.folder));
      return folder.string() + path.substr(each.folder.size());
    };
    const auto variables = variables_of(each.name);
    REQUIRE(variables.size() == 2);
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    const Request request{
        .version = 1, .device = Device::cpu(), .registry = published.root().string()};
    const Environment cache("KILN_CACHE", placed(variables.at("KILN_CACHE")));
    const Environment home("HOME", folder.string());
    const Error refused = error_of([&] { get_kernel("sample", request); });
    CHECK(refused.code() == ErrorCode::kCache);
    CHECK_CONTAINS(refused.what(), "KILN_SAFE_FOLDERS=" + folder.string());
    {
      const Environment safe("KILN_SAFE_FOLDERS", placed(variables.at("KILN_SAFE_FOLDERS")));
      CHECK(get_kernel("sample", request).version() == 1);
      CHECK(has_kernel("sample", request));
    }
    // The folder itself as the cache, as one writes it first.
    const Environment root("KILN_CACHE", (folder / "other").string());
    fs::create_directory(folder / "other");
    REQUIRE(::chmod((folder / "other").c_str(), each.mode) == 0);
    const Environment safe("KILN_SAFE_FOLDERS", (folder / "other").string());
    CHECK(get_kernel("sample", request).version() == 1);
  }
}

}  // namespace
}  // namespace kiln::test
