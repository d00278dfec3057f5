// SPDX-License-Identifier: Apache-2.0
//
// Query: has_kernel, what get_kernel would do offline. It runs the same steps up to the load; where
// install would unpack a cached layer, it hashes that layer and looks whether there is a place.
#include <new>

#include "base/signals.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"

namespace kiln {

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
