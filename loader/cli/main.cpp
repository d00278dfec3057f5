// SPDX-License-Identifier: Apache-2.0
//
// kiln: parses the command line, calls one command, turns kiln::Error into text and exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "manifest.hpp"
#include "output.hpp"
#include "progress.hpp"

namespace kiln::cli {

Spec parse_spec(const std::string& text) {
  const std::size_t at = text.find('@');
  Spec spec{text.substr(0, at), 0};
  bool good = is_package_name(spec.name);
  if (at != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + at + 1, end, spec.version);
    good = good && error == std::errc() && stop == end && spec.version >= 1;
  }
  if (!good) {
    throw Error(ErrorCode::kUsage, "'" + text + "' is not NAME@VERSION, such as geglu-mlp@1");
  }
  return spec;
}

Request Options::request_for(const Spec& spec) const {
  Request result = request;
  result.version = spec.version;
  return result;
}

namespace {

Device parse_device(const std::string& text) {
  if (text == "auto") return Device::automatic();
  if (text == "cpu") return Device::cpu();
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    int ordinal = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, ordinal);
    if (error == std::errc() && stop == end && ordinal >= 0) return Device::cuda(ordinal);
  }
  throw Error(ErrorCode::kUsage, "--device " + text + " is not auto, cpu or cuda:N");
}

struct Arguments {
  Options options;
  std::vector<std::string> specs;
  std::string device = "auto";
  std::string cache;
};

struct Command {
  const char* name;
  const char* description;
  int (*run)(const Options&);
  int min_specs;
  int max_specs;  // -1: any number
  bool chooses;   // takes --registry, --device, --variant, --no-jit, --refresh
};

constexpr Command kCommands[] = {
    {"install", "Fetch, verify and unpack the variant for this machine", install, 1, -1, true},
    {"resolve", "Say which variant this machine would get, and why not the others", resolve, 1, 1,
     true},
    {"list", "List what is in the cache", list, 0, -1, false},
    {"path", "Print the file that get_kernel would load", path, 1, 1, true},
    {"info", "Describe a package: versions, variants, and its ops once it is installed", info, 1, 1,
     true},
    {"verify", "Hash everything that is installed", verify, 0, -1, false},
    {"doctor", "Say what this machine is, what it would get, and what to mend", doctor, 0, -1,
     true},
};

void add_command(CLI::App& app, const Command& command, Arguments& arguments,
                 std::function<int()>& chosen) {
  CLI::App* sub = app.add_subcommand(command.name, command.description);
  auto* specs = sub->add_option("package", arguments.specs, "NAME@VERSION, such as geglu-mlp@1");
  specs->expected(command.min_specs, command.max_specs < 0 ? 1000 : command.max_specs);
  if (command.min_specs > 0) specs->required();
  Request& request = arguments.options.request;
  if (command.chooses) {
    sub->add_option("--registry", request.registry, "Folder or URL; default $KILN_REGISTRY");
    sub->add_option("--device", arguments.device, "auto, cpu or cuda:N");
    sub->add_option("--variant", request.variant, "Take this variant only");
    sub->add_flag("!--no-jit", request.allow_jit, "Do not choose PTX, which the driver compiles");
    sub->add_flag("--refresh", request.refresh,
                  "Ask the registry again; fetch damaged files again");
  }
  sub->add_option("--cache", arguments.cache, "Cache folder; default $KILN_CACHE or ~/.cache/kiln");
  sub->add_flag("--json", arguments.options.json, "One JSON document on stdout");
  sub->add_flag("-q,--quiet", arguments.options.quiet, "No progress on stderr");
  sub->callback([&arguments, &chosen, run = command.run] {
    chosen = [&arguments, run] {
      Options& options = arguments.options;
      for (const std::string& text : arguments.specs) options.specs.push_back(parse_spec(text));
      options.request.device = parse_device(arguments.device);
      options.request.cache = arguments.cache;
      options.request.on_event = progress_on_stderr(options.quiet);
      return run(options);
    };
  });
}

// `kiln build …` and `kiln registry …` become the program of that name beside this one, as git
// does.
int run_beside(const std::string& name, char** argv) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path program = self.parent_path() / ("kiln-" + name);
  std::vector<char*> arguments(argv + 1, argv + 1);
  for (char** argument = argv + 1; *argument != nullptr; ++argument) arguments.push_back(*argument);
  std::string word = program.string();
  arguments.front() = word.data();
  arguments.push_back(nullptr);
  execv(word.c_str(), arguments.data());
  throw Error(
      ErrorCode::kNotFound,
      "kiln " + name + ": there is no " + word +
          "; that command comes with a build of Kiln's source, not with an installed loader");
}

int run(int argc, char** argv) {
  if (argc > 1 &&
      (std::string_view(argv[1]) == "build" || std::string_view(argv[1]) == "registry")) {
    return run_beside(argv[1], argv);
  }
  CLI::App app(
      "Prebuilt GPU kernels: finds, verifies and installs the one binary for this machine.",
      "kiln");
  app.set_version_flag("--version", "kiln " KILN_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Also: kiln build (compile packages), kiln registry (publish, export, check).\n"
      "Exit codes: 2 usage, 3 no variant fits, 4 not found, 5 network, 6 integrity, 9 cache,\n"
      "11 needs a newer kiln, 12 load, 13 call, 14 device, 15 build, 16 conflict, 1 a bug.");
  Arguments arguments;
  std::function<int()> chosen;
  for (const Command& command : kCommands) add_command(app, command, arguments, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorCode::kUsage);
  }
  try {
    return chosen();
  } catch (const Error& error) {
    if (arguments.options.json) {
      print_json("error", {{"code", std::string(to_string(error.code()))},
                           {"exit", static_cast<int>(error.code())},
                           {"message", error.what()}});
    }
    throw;
  }
}

}  // namespace
}  // namespace kiln::cli

int main(int argc, char** argv) {
  try {
    return kiln::cli::run(argc, argv);
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "kiln: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kiln: internal error: %s\n", error.what());
    return static_cast<int>(kiln::ErrorCode::kInternal);
  }
}
