// SPDX-License-Identifier: Apache-2.0
//
// Host: the counterpart of device.cpp in CPU packages.
#include <kiln/sdk/glue.hpp>

#if defined(__AMX_TILE__)
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kiln::sdk {
namespace {

#if defined(__AMX_TILE__)
// Linux gives a process the tile registers of AMX when it asks for them, for all of its threads.
int request_tiles() {
  constexpr int kRequestRegisters = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestRegisters, kTileData) == 0 ? 0 : errno;
}

// Also for a caller that does not prepare, as tvm-ffi.
[[gnu::constructor]] void request_when_loaded() {
  request_tiles();
}

int32_t prepare_cpu(kiln_error* error) {
  const int refused = request_tiles();
  if (refused == 0) return KILN_OK;
  return fail(error, KILN_UNSUPPORTED,
              "prepare: Linux gives this process no tile registers of AMX (arch_prctl: %s); use a "
              "variant of a lower CPU level",
              strerror(refused));
}
#else
int32_t prepare_cpu(kiln_error*) {
  return KILN_OK;
}
#endif

}  // namespace

int32_t prepare(DLDevice device, kiln_error* error) {
  if (device.device_type == kDLCPU) return prepare_cpu(error);
  return fail(error, KILN_INVALID_ARGUMENT,
              "prepare: device type is %d; expected %d (cpu), for which this variant is built",
              static_cast<int>(device.device_type), static_cast<int>(kDLCPU));
}

}  // namespace kiln::sdk
