// SPDX-License-Identifier: Apache-2.0
//
// Device: how a GPU package loads and launches its kernels: through the driver API, found in
// libcuda.so.1 at run time, so that no package links CUDA. The device code is embedded in the
// library, one image for each device source, named by the source's stem.
#pragma once

#include <kiln/sdk/types.hpp>

#include <atomic>

namespace kiln::sdk {

// One kernel that this package may launch. The package defines the list; a kernel whose image is
// not in this variant (sm90_*.cu in an sm_80 build) is absent: see OnDevice::has.
struct KernelSpec {
  const char* image;      // stem of the device source: "smxx_gated"
  const char* function;   // extern "C" name
  uint32_t shared_bytes;  // dynamic shared memory; above 48 KiB the limit is raised at load
};
struct KernelList {
  const KernelSpec* kernels;
  int count;
};
// Defined by the package, as a constant array of literals: the build refuses a library whose list
// and images do not name the same kernels.
KernelList kernel_list();

struct DeviceFacts {
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  // opt-in limit
};

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

// A launch in full. `cluster` CTAs, neighbours in x, share their memory (SM 9.0 and newer; grid.x
// is a multiple of it). `overlap`: the kernel may start before the one ahead of it in the stream
// has ended, whosever that is, and waits for it itself (griddepcontrol.wait) before it reads or
// writes; ignored by drivers older than CUDA 12.3, which cannot capture that into a graph.
struct Launch {
  Grid grid;
  uint32_t threads = 1;
  uint32_t cluster = 1;
  bool overlap = false;
};

// What the copy engine (TMA) reads or writes at once: box_rows x box_columns of a row-major matrix
// of float16, bfloat16 or float32, as rows of 32, 64 or 128 swizzled bytes in shared memory. The
// matrix is 16-byte aligned and so are its rows.
struct MatrixBox {
  const void* data = nullptr;
  DType dtype = DType::kBFloat16;
  int64_t rows = 0;
  int64_t columns = 0;
  uint32_t box_rows = 0;
  uint32_t box_columns = 0;
  // A read that misses the L2 cache brings the 256 bytes around it there, not 128: for rows that
  // many CTAs read. Where each byte is read once it costs bandwidth.
  bool wide_fetch = true;
};
inline constexpr int kTensorMapBytes = 128;  // of a CUtensorMap, which is 64-byte aligned

// Scope in which a device's context is current: the caller's own if it belongs to the device, else
// the primary one. The destructor restores what was there.
class OnDevice {
 public:
  OnDevice() = default;
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  // Loads the images into the context unless they are there already.
  int32_t enter(DLDevice device, kiln_error* error);
  const DeviceFacts& facts() const;
  bool has(int kernel) const;

  // A place for one pointer of the package's own that belongs to the context: a library's handle.
  // Null in a new context, also in one at the address of a destroyed one; the launcher never looks
  // at it. Only after enter().
  std::atomic<void*>& attachment() const;

  // Enqueues kernel number `kernel` of kernel_list(); `arguments` as for cuLaunchKernel.
  int32_t launch(int kernel, Grid grid, uint32_t threads, void* stream, void** arguments,
                 kiln_error* error) const;
  int32_t launch(int kernel, const Launch& launch, void* stream, void** arguments,
                 kiln_error* error) const;

  // Describes `box` to the copy engine: writes a CUtensorMap to `map`. Host work only; `map` goes
  // to the kernel by value. `name` is the tensor's, for the error. SM 9.0 and newer.
  int32_t map_matrix(const MatrixBox& box, const char* name, void* map, kiln_error* error) const;

 private:
  struct LoadedContext* loaded_ = nullptr;
  bool pushed_ = false;
};

}  // namespace kiln::sdk
