// SPDX-License-Identifier: Apache-2.0
//
// Command: the options that commands share, and the way from typed words to what runs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/number.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/descriptor.hpp"
#include "documents/host.hpp"
#include "documents/names.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "loader/cli/frame/commands.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/frame/usage.hpp"
#include "store/registry.hpp"

namespace kiln::cli {
namespace {

constexpr std::uint64_t kMaxNumber = std::numeric_limits<int>::max();

Device parse_device(const std::string& text) {
  if (text == "auto") return Device::automatic();
  if (text == "cpu") return Device::cpu();
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const auto ordinal = parse_decimal(text.substr(kPrefix.size()), kMaxNumber);
    if (ordinal) return Device::cuda(static_cast<int>(*ordinal));
  }
  throw Error(ErrorCode::kUsage, "--device " + text + " is not auto, cpu or cuda:N");
}

Host read_host(const std::string& path) {
  const NamedFile file = read_named_file(path, kMaxDocumentBytes, Pipes::kRead);
  if (!file.problem.empty()) {
    throw Error(ErrorCode::kUsage, "--host " + path + ": " + file.problem +
                                       ". Write it on the machine that it is about, with 'kiln "
                                       "host --json'");
  }
  return parse_host(file.text, path);
}

/// "kiln cache gc": the words that lead to a command.
std::string words_of(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent == nullptr ? app.get_name() : words_of(*parent) + " " + app.get_name();
}

}  // namespace

Spec parse_spec(const std::string& text) {
  const std::size_t at = text.find('@');
  Spec spec{text.substr(0, at), 0};
  const auto fail = [&](const std::string& half, const char* expected) {
    throw Error(ErrorCode::kUsage, "read package " + quote(text) + ": " + half + ", expected " +
                                       expected + ". Write it as geglu-mlp@1");
  };
  if (!is_package_name(spec.name)) {
    fail("the name is " + quote(spec.name), "words of a-z and 0-9 joined by '-'");
  }
  if (at == std::string::npos) return spec;
  const std::string version = text.substr(at + 1);
  spec.version = static_cast<int>(parse_decimal(version, kMaxNumber).value_or(0));
  if (spec.version == 0) {
    fail("the version is " + quote(version),
         "a whole number from 1; 'kiln info NAME' lists them, 'kiln add NAME' takes the newest");
  }
  return spec;
}

std::string Spec::text() const {
  return version == 0 ? name : label(name, version);
}

Request Options::request_for(const Spec& spec) const {
  Request result = request;
  result.version = spec.version;
  if (spec.version == 0 && lockfile_of(request, load_settings()).empty()) {
    Catalog catalog(spec.name, request);
    const std::vector<int> versions = catalog.known_versions();
    throw Error(ErrorCode::kUsage,
                "find " + spec.name + ": no version is named; published: " + listed(versions) +
                    ". Run: " + command + " " + label(spec.name, catalog.newest_version()));
  }
  return result;
}

void Options::tell_repair() const {
  const std::string cache =
      request.cache.empty() ? "" : " --cache " + shell_word(request.cache.string());
  tell("kiln: 'kiln cache repair%s' fetches what is damaged again\n", cache.c_str());
}

Cache Options::existing_cache() const {
  Cache cache(request.cache, request.stop, request.on_event);
  if (request.cache.empty() || stands(cache.root())) return cache;
  throw Error(ErrorCode::kNotFound, command + ": there is no folder " + cache.root().string() +
                                        ". Check --cache; the first install makes it");
}

std::vector<Spec> Options::specs_or_locked() const {
  if (!specs.empty()) return specs;
  const std::filesystem::path file = lockfile_of(request, load_settings());
  if (file.empty()) {
    throw Error(ErrorCode::kUsage,
                "no package is named. Name one, such as geglu-mlp@1, or hold to a lock file that "
                "has them: --locked");
  }
  std::vector<Spec> locked;
  for (const auto& [name, kernel] : read_lockfile(file)) locked.push_back({name, kernel.version});
  return locked;
}

void Command::takes_package() {
  takes_packages();
  app_.get_option("package")->expected(1)->required();
}

void Command::takes_packages() {
  app_.add_option("package", line_.packages, "NAME@VERSION, such as geglu-mlp@1")
      ->type_name("PACKAGE")
      ->expected(-1);
}

void Command::takes_cache() {
  Options& options = line_.options;
  app_.add_option("--cache", options.request.cache,
                  "Cache folder; default $KILN_CACHE or ~/.cache/kiln")
      ->type_name("FOLDER");
  app_.add_flag("-q,--quiet", options.quiet, "No progress on stderr");
  takes_json();
}

void Command::takes_json() {
  app_.add_flag("--json", line_.options.json, "One JSON document on stdout");
}

void Command::takes_registry() {
  Request& request = line_.options.request;
  app_.add_option("--registry", request.registry, "Folder or URL; default $KILN_REGISTRY")
      ->type_name("FOLDER|URL");
  app_.add_option("--from", request.from,
                  "Fetch from this bundle, folder or mirror; --registry stays its name")
      ->type_name("FILE");
  takes_offline();
}

void Command::takes_offline() {
  app_.add_flag("--offline", line_.options.request.offline, "Fetch nothing; or set KILN_OFFLINE=1");
}

void Command::takes_device() {
  Request& request = line_.options.request;
  app_.add_option("--device", line_.device, "What to compute on; default auto")
      ->type_name("auto|cpu|cuda:N");
  app_.add_flag_callback(
      "--no-jit", [&request] { request.allow_jit = false; },
      "Do not choose PTX, which the driver compiles");
}

void Command::takes_choice() {
  takes_registry();
  takes_device();
  Request& request = line_.options.request;
  app_.add_option("--variant", request.variant, "Take this variant only")->type_name("VARIANT");
  app_.add_flag("--all-devices", request.all_gpus, "Only a variant that every GPU runs");
  app_.add_option("--deny", request.deny, "Never take this variant or manifest digest; repeatable")
      ->type_name("VARIANT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app_.add_option("--fallback", line_.fallbacks,
                  "What may be taken where nothing fits; repeatable, in order")
      ->type_name("cpu|version:N")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app_.add_flag("--refresh", request.refresh, "Ask the registry again; fetch damaged files again");
}

void Command::takes_host() {
  app_.add_option("--host", line_.host, "For the machine of this facts file (kiln host --json)")
      ->type_name("FILE");
}

void Command::takes_dev() {
  app_.add_flag("--dev", line_.options.dev,
                "The headers and the card of the package in place of its library");
}

void Command::takes_lock() {
  app_.add_option("--lock", line_.options.request.lock,
                  "Hold to this lock file; default $KILN_LOCK")
      ->type_name("FILE");
  app_.add_flag("--locked", line_.locked, "Hold to ./kiln.lock, which must be there");
  app_.add_flag("--frozen", line_.frozen, "--locked and --offline");
}

void Command::example(const std::string& words, const std::string& meaning) {
  constexpr std::size_t kColumn = 50;
  std::string line = "  " + words_of(app_) + (words.empty() ? "" : " " + words);
  line.resize(std::max(kColumn, line.size() + 2), ' ');
  const std::string before = app_.get_footer();
  app_.footer((before.empty() ? "Examples:" : before) + "\n" + line + meaning);
}

void Command::runs(std::function<int(const Options&)> run) {
  app_.callback([&line = line_, words = words_of(app_), run = std::move(run)] {
    line.chosen = [&line, words, run] {
      Options& options = line.options;
      print_results_as(options.json ? Results::kJson : Results::kText);
      options.command = words;
      for (const std::string& text : line.packages) options.specs.push_back(parse_spec(text));
      options.request.device = parse_device(line.device);
      for (const std::string& text : line.fallbacks) {
        options.request.fallback.push_back(parse_fallback(text));
      }
      if (!line.host.empty()) options.host = read_host(line.host);
      if ((line.locked || line.frozen) && lockfile_of(options.request, load_settings()).empty()) {
        options.request.lock = "kiln.lock";
      }
      if (line.frozen) options.request.offline = true;
      options.request.on_event = progress_on_stderr(options.quiet);
      options.request.stop = stop_on_signals();
      return run(options);
    };
  });
}

}  // namespace kiln::cli
