// SPDX-License-Identifier: Apache-2.0
//
// kiln: the user's tool. Its verbs are in verbs/, all else is run_program's.
#include "loader/cli/frame/program.hpp"
#include "loader/cli/verbs/check_run.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

template <void (*Declare)(KernelCommand&)>
void of(Command& command) {
  KernelCommand kernels(command);
  Declare(kernels);
}

Program kiln_program() {
  return {
      .name = "kiln",
      .summary =
          "Prebuilt GPU kernels: finds, verifies and installs the one binary for this machine.",
      .verbs =
          {
              {"install", "Fetch, verify and unpack the variant for this machine", of<install>},
              {"add", "Pin a kernel in kiln.lock, the newest version by default", of<add>},
              {"remove", "Take a kernel out of kiln.lock", of<remove>},
              {"update", "Move kiln.lock to the newest versions", of<update>},
              {"outdated", "Say what is newer than kiln.lock, or than what is installed",
               of<outdated>},
              {"audit", "List the advisories that speak of what a lock file or the cache has",
               of<audit>},
              {"uninstall", "Take kernels out of the cache", of<uninstall>},
              {"search", "List the packages of a registry", of<search>},
              {"resolve", "Say which variant this machine would get, and why not the others",
               of<resolve>},
              {"lock", "Write kiln.lock: the digests of all variants, for every machine", of<lock>},
              {"bundle", "Carry kernels to machines without a network, in one file", {}},
              {"bundle create", "Write kernels into one file, an OCI archive", of<bundle_create>},
              {"bundle install", "Verify and unpack kernels out of such a file",
               of<bundle_install>},
              {"trust", "Say whose signatures vouch for a registry's versions", {}},
              {"trust add", "Trust a registry by its root metadata, or as it is", of<trust_add>},
              {"trust require", "Require that somebody signed what is installed",
               of<trust_require>},
              {"trust list", "List the registries that are trusted, and their roots",
               of<trust_list>},
              {"trust remove", "Trust a registry no longer", of<trust_remove>},
              {"list", "List what is in the cache", of<list>},
              {"path", "Print the file that get_kernel would load", of<path>},
              {"info", "Describe a package: its versions, ops, variants and their sizes", of<info>},
              {"cache", "Where the cache is, whether it is intact; repair it, empty it", {}},
              {"cache dir", "Print the cache folder", of<cache_dir>},
              {"cache verify", "Hash everything that is installed", of<cache_verify>},
              {"cache repair", "Remove what is damaged and fetch it again", of<cache_repair>},
              {"cache gc", "Remove what nothing holds", of<cache_gc>},
              {"login", "Say how to log in to a registry, and which login there is", of<login>},
              {"host", "Print this machine's facts, for --host on another one", of<host>},
              {"doctor", "Say what this machine is, what it would get, and what to fix",
               of<doctor>},
              {"test", "Compare a kernel with double precision on this machine", of<test>},
              {"tune", "Time the kernels that a package offers here, and keep the fastest",
               of<tune>},
              {"diff", "Say what differs between two versions, and compute with both", of<diff>},
              {"run-check", "One check, in a process of its own", of<run_check_verb>, true},
              {"completions", "Print the script that makes bash, zsh or fish complete kiln",
               of<completions>},
          },
      .elsewhere =
          {
              {"bench", "Time an MLP on this GPU, beside PyTorch and its rivals", "kiln-bench"},
              {"build", "Compile packages", "kiln-build"},
              {"pack", "Make a package of binaries that exist", "kiln-build"},
              {"new", "Write the folder of a package to start from", "kiln-build"},
              {"registry", "Publish, push, export, list, check", "kiln-registry", true},
          },
      .carried = {"--cache", "--registry", "--lock"},
      .notes =
          "Examples:\n"
          "  kiln doctor                   what this machine is, and what to fix\n"
          "  kiln search                   the packages of the registry\n"
          "  kiln add geglu-mlp            the newest version, into kiln.lock\n"
          "  kiln install --locked         all that kiln.lock has\n\n"
          "'kiln COMMAND --help' has what a command takes, and examples.\n"
          "Exit codes: 2 usage, 3 no variant fits, 4 not found, 5 network, 6 integrity, 7 trust,\n"
          "8 lock, 9 cache, 10 offline, 11 needs a newer kiln, 12 load, 13 call, 14 device, 15 "
          "build,\n"
          "16 conflict, 130 cancelled, 1 a bug.",
      .offers = {installed_packages, known_variants},
  };
}

}  // namespace
}  // namespace kiln::cli

int main(int argc, char** argv) {
  return kiln::cli::run_program(kiln::cli::kiln_program(), argc, argv);
}
