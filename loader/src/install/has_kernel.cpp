// SPDX-License-Identifier: Apache-2.0
//
// HasKernel: what get_kernel would do offline. It runs the same steps up to the load; where
// install would unpack a cached layer, it hashes that layer and looks whether there is a place.
#include <unistd.h>

#include <cerrno>
#include <new>

#include "base/signals.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "store/inside.hpp"
#include "verify/verify.hpp"

namespace kiln {

namespace fs = std::filesystem;

void Install::check_installed(const Package& package) {
  if (package.just_unpacked) return;
  const std::string of = package.subject;
  const fs::path relative = package.folder.lexically_relative(source_.cache.root());
  if (open_folder_inside(source_.cache.root(), relative).valid()) {
    const ArchiveFile& library = library_file(package.config);
    if (!verify_unpacked(package.folder, library, "library of " + of)) {
      fail_missing_library(package.folder / library.path);
    }
    return;
  }
  // Not unpacked yet: install would do it, from the layer in the cache.
  const std::string what = "layer of " + of;
  if (!source_.cache.verify_blob(package.manifest.layer, what, kFetchAgain))
    source_.repository(what);
  if (::access(source_.cache.root().c_str(), W_OK) != 0) {
    fail_cache("unpack into", source_.cache.root(), errno);
  }
}

Availability has_kernel(std::string_view name, const Request& request) {
  const NoCancel whole;
  Availability answer;
  try {
    Request offline = request;
    offline.offline = true;
    offline.refresh = false;
    offline.from.clear();
    offline.on_event = {};
    Install install(name, offline);
    const FileLock used = install.cache().use();  // gc takes nothing meanwhile
    const Choice choice = install.choose();
    answer.device = choice.resolution.device;
    answer.version = choice.version.index.version;
    const Variant& variant = choice.variant();
    answer.variant = variant.id;
    install.check_installed(install.pull(choice));
    answer.available = true;
  } catch (const Error& error) {
    answer.code = error.code();
    answer.reason = error.what();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    answer.reason = error.what();
  }
  return answer;
}

}  // namespace kiln
