// SPDX-License-Identifier: Apache-2.0
//
// The options that kiln's verbs share, and the way from typed words to what runs.
#include "loader/cli/verbs/kernel_command.hpp"

#include <limits>
#include <string>
#include <utility>

#include "base/draft.hpp"
#include "base/number.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/descriptor.hpp"
#include "documents/host.hpp"
#include "documents/names.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "loader/cli/frame/cancel.hpp"
#include "loader/cli/frame/output.hpp"
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

/// The cache may have all that is asked for; a name that was mistyped is an error all the same.
void check_is_there(const std::string& from) {
  const std::string place = canonical_registry(from, load_settings());
  std::error_code error;
  if (!place.starts_with('/') || std::filesystem::exists(place, error)) return;
  const bool in_a_circle = error == std::errc::too_many_symbolic_link_levels;
  if (error && !in_a_circle) fail_file("look at", place, error.value());
  fail_no_folder("fetch from", place, "Check --from, which may name a file, too");
}

}  // namespace

Host read_host(const std::string& path) {
  const NamedFile file = read_named_file(path, kMaxDocumentBytes, Pipes::kRead);
  if (!file.problem.empty()) {
    throw Error(ErrorCode::kUsage, "--host " + path + ": " + file.problem +
                                       ". Write it on the machine that it is about, with 'kiln "
                                       "host --json'");
  }
  return parse_host(file.text, path);
}

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
                    ". Write it as " + label(spec.name, catalog.newest_version()));
  }
  return result;
}

void Options::tell_repair() const {
  const std::string cache =
      request.cache.empty() ? "" : " --cache " + shell_word(request.cache.string());
  tell("kiln: 'kiln cache repair%s' fetches what is damaged again\n", cache.c_str());
}

void Options::tell_offline() const {
  if (!request.offline && !load_settings().offline) return;
  tell(
      "kiln: offline: nothing is asked, and versions that this cache does not know of are not "
      "seen\n");
}

Cache Options::existing_cache() const {
  Cache cache(request.cache, request.stop, request.on_event);
  if (request.cache.empty() || stands(cache.root(), &fail_cache)) return cache;
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

/// The words of a command line as they were typed.
struct KernelCommand::Typed {
  std::vector<std::string> packages;
  std::string device = "auto";
  bool no_jit = false;
  bool locked = false;
  bool frozen = false;
  std::vector<std::string> fallbacks;
  std::string host;
  Options options;
};

KernelCommand::KernelCommand(const Command& command)
    : Command(command), typed_(std::make_shared<Typed>()) {}

void KernelCommand::takes_package() {
  takes_packages().required().once();
}

Option KernelCommand::takes_packages() {
  return option("package", typed_->packages, "PACKAGE", "NAME@VERSION, such as geglu-mlp@1");
}

void KernelCommand::takes_named_packages() {
  takes_packages().required();
}

void KernelCommand::takes_cache() {
  option("--cache", typed_->options.request.cache, "FOLDER",
         "Cache folder; default $KILN_CACHE or ~/.cache/kiln");
}

void KernelCommand::takes_registry() {
  Request& request = typed_->options.request;
  option("--registry", request.registry, "FOLDER|URL", "Folder or URL; default $KILN_REGISTRY");
  option("--from", request.from, "FILE",
         "Fetch from this bundle, folder or mirror; --registry stays its name");
  takes_offline();
}

void KernelCommand::takes_offline() {
  flag("--offline", typed_->options.request.offline, "Fetch nothing; or set KILN_OFFLINE=1");
}

void KernelCommand::takes_device() {
  option("--device", typed_->device, "auto|cpu|cuda:N", "What to compute on; default auto");
  flag("--no-jit", typed_->no_jit, "Do not choose PTX, which the driver compiles");
}

void KernelCommand::takes_choice() {
  takes_registry();
  takes_device();
  Request& request = typed_->options.request;
  option("--variant", request.variant, "VARIANT", "Take this variant only");
  flag("--all-devices", request.all_gpus, "Only a variant that every GPU runs");
  option("--deny", request.deny, "VARIANT",
         "Never take this variant or manifest digest; repeatable");
  option("--fallback", typed_->fallbacks, "cpu|version:N",
         "What may be taken where nothing fits or no GPU works; repeatable, in order");
  flag("--refresh", request.refresh, "Ask the registry again; fetch damaged files again");
}

void KernelCommand::takes_host() {
  option("--host", typed_->host, "FILE", "For the machine of this facts file (kiln host --json)");
}

void KernelCommand::takes_dev() {
  flag("--dev", typed_->options.dev,
       "The package's headers, modules, check and card in place of its library");
}

void KernelCommand::takes_lock() {
  option("--lock", typed_->options.request.lock, "FILE",
         "Hold to this lock file; default $KILN_LOCK");
  flag("--locked", typed_->locked, "Hold to ./kiln.lock, which must be there");
  flag("--frozen", typed_->frozen, "--locked and --offline");
}

void KernelCommand::takes_kernel() {
  takes_package();
  takes_choice();
  takes_lock();
  takes_cache();
}

void KernelCommand::runs(std::function<int(const Options&)> run) {
  Command::runs([typed = typed_, run = std::move(run)](const Call& call) {
    Options& options = typed->options;
    static_cast<Call&>(options) = call;
    // As a shell completes it; a variable, which counts wherever one is, must have the whole path.
    if (!options.request.cache.empty())
      options.request.cache = absolute_path(options.request.cache);
    if (!options.request.from.empty()) check_is_there(options.request.from);
    for (const std::string& text : typed->packages) options.specs.push_back(parse_spec(text));
    options.request.device = parse_device(typed->device);
    options.request.allow_jit = !typed->no_jit;
    for (const std::string& text : typed->fallbacks) {
      options.request.fallback.push_back(parse_fallback(text));
    }
    if (!typed->host.empty()) options.host = read_host(typed->host);
    const bool locked = typed->locked || typed->frozen;
    if (locked && lockfile_of(options.request, load_settings()).empty()) {
      options.request.lock = "kiln.lock";
    }
    if (typed->frozen) options.request.offline = true;
    options.request.on_event = progress_on_stderr(options.quiet);
    options.request.stop = stop_on_signals();
    return run(options);
  });
}

}  // namespace kiln::cli
