// SPDX-License-Identifier: Apache-2.0
//
// kiln-registry: the embedded registry from the command line; `kiln registry …` runs it. Its verbs
// are in this folder, all else is run_program's.
#include "loader/cli/frame/program.hpp"
#include "registry/cli/verbs.hpp"

namespace kiln::registry {
namespace {

template <void (*Declare)(RegistryCommand&)>
void of(cli::Command& command) {
  RegistryCommand registry(command);
  Declare(registry);
}

cli::Program registry_program() {
  return {
      .name = "kiln registry",
      .summary =
          "Kiln's embedded registry: publish, attest, sign, push, export, list, check, site, serve",
      .verbs =
          {
              {"publish", "Add built variants; never changes one", of<publish_verb>},
              {"push",
               "Bring versions of a folder to a registry on a server. What is there stays; a "
               "version "
               "is moved last, when all of it is there. Logs in as docker, podman and skopeo do",
               of<push_verb>},
              {"export-static", "Write the files of the OCI pull API for a web server",
               of<export_verb>},
              {"list", "Published versions, variants and their tests", of<list_verb>},
              {"check", "Verify every blob and every reference", of<check_verb>},
              {"key", "Make a key: FILE, private, and FILE.pub", of<key_verb>},
              {"init", "Draft a registry's first root: whose keys sign what", of<init_verb>},
              {"rotate", "Draft the next root: other keys for the roles named, the rest as before",
               of<rotate_verb>},
              {"sign",
               "Sign a registry folder: what each version is, and that this is the newest. What "
               "too "
               "few keys have signed stays a draft that no client sees. With a FILE: add "
               "signatures "
               "to that draft; without keys, see what it changes",
               of<sign_verb>},
              {"delegate",
               "Leave packages to another publisher, who signs them with keys of its own",
               of<delegate_verb>},
              {"yank", "Take a version back: clients refuse it, and say why", of<yank_verb>},
              {"advisory", "Warn users of variants that are out, or have clients refuse them", {}},
              {"advisory publish",
               "Sign an advisory: by package, variant, GPU, driver, or what variants were made "
               "with",
               of<advisory_publish_verb>},
              {"advisory lift", "Take an advisory back", of<advisory_lift_verb>},
              {"advisory list", "The advisories of a registry, with those that were lifted",
               of<advisory_list_verb>},
              {"attest",
               "Sign statements about a version, for Kiln and for cosign: that it is yours, its "
               "files "
               "and licences (SPDX), what it was built from (SLSA), where it was tested",
               of<attest_verb>},
#ifdef KILN_SITE
              {"describe", "Hang a card on a version: the page that its author wrote",
               of<describe_verb>},
              {"site", "Write a static site: a page per package and version", of<site_verb>},
              {"serve",
               "Serve the site and the pull API to this machine, for a try; Ctrl-C ends it",
               of<serve_verb>},
#endif
          },
  };
}

}  // namespace
}  // namespace kiln::registry

int main(int argc, char** argv) {
  return kiln::cli::run_program(kiln::registry::registry_program(), argc, argv);
}
