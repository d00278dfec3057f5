// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/carried.hpp>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtype.hpp"

namespace kiln::sdk {
namespace {

// Of Linux; the glibc that packages are linked against has no names for them.
constexpr unsigned kCloseOnExec = 1;      // MFD_CLOEXEC
constexpr unsigned kAllowSealing = 2;     // MFD_ALLOW_SEALING
constexpr unsigned kNoExecSeal = 8;       // MFD_NOEXEC_SEAL, from 6.3 on; EINVAL before
constexpr int kAddSeals = 1033;           // F_ADD_SEALS
constexpr int kAllSeals = 1 | 2 | 4 | 8;  // F_SEAL_SEAL, _SHRINK, _GROW, _WRITE

// Type indices of tvm-ffi's stable ABI.
constexpr int32_t kTvmNone = 0;
constexpr int32_t kTvmInt = 1;
constexpr int32_t kTvmFloat = 3;
constexpr int32_t kTvmDlTensor = 7;
constexpr int32_t kTvmCString = 8;
constexpr int32_t kTvmFirstObject = 64;

struct TvmBytes {
  const char* data;
  size_t size;
};

// An error object: the header of all objects (24 bytes), then these.
constexpr size_t kTvmObjectHeaderBytes = 24;
struct TvmError {
  TvmBytes kind;
  TvmBytes message;
};

using TvmCall = int (*)(void* self, const TvmValue* arguments, int32_t count, TvmValue* result);

// What is called of tvm-ffi itself. All are null where the carried library does not link it.
struct Runtime {
  void (*move_from_raised)(void** error) = nullptr;
  int (*release)(void* object) = nullptr;
  int (*set_stream)(int32_t device_type, int32_t device_id, void* stream, void** before) = nullptr;
};

pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
std::atomic<void*> library = nullptr;  // the last of kCarried; what stands below is set before it
Runtime runtime;

int32_t fail_here(const Carried& file, const char* step, const char* why, kiln_error* error) {
  return fail(error, KILN_UNSUPPORTED, "load %s, which the package carries: %s: %s", file.soname,
              step, why);
}

int make_memory_file(const char* name) {
  const unsigned flags = kCloseOnExec | kAllowSealing;
  long fd = syscall(SYS_memfd_create, name, flags | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = syscall(SYS_memfd_create, name, flags);
  return static_cast<int>(fd);
}

bool write_all(int fd, const unsigned char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// glibc takes a library for loaded already if one was opened by the same path, which a descriptor's
// number is a part of: one that a loaded library had once, and a host has closed since, is passed
// over.
bool is_taken(int fd, char (&path)[32]) {
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  void* const known = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (known != nullptr) dlclose(known);
  return known != nullptr;
}

// The copy stays open: its number belongs to the library, which is never unloaded.
int32_t load_copy(const Carried& file, void** handle, kiln_error* error) {
  int fd = make_memory_file(file.soname);
  if (fd < 0) return fail_here(file, "memfd_create", strerror(errno), error);
  if (!write_all(fd, file.bytes, file.size) || fcntl(fd, kAddSeals, kAllSeals) != 0) {
    const int why = errno;
    close(fd);
    return fail_here(file, "write a copy in memory", strerror(why), error);
  }
  char path[32];
  while (is_taken(fd, path)) {
    const int other = fcntl(fd, F_DUPFD_CLOEXEC, fd + 1);
    const int why = errno;
    close(fd);
    if (other < 0) return fail_here(file, "find a descriptor for the copy", strerror(why), error);
    fd = other;
  }
  *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (*handle != nullptr) return KILN_OK;
  const char* const why = dlerror();
  const int32_t status = fail_here(file, "the dynamic linker refuses it",
                                   why != nullptr ? why : "no reason given", error);
  close(fd);
  return status;
}

// As the dynamic linker binds the library's own references: what the whole process sees is first.
template <class Function>
void find_in_scope(void* handle, const char* name, Function* function) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) found = dlsym(handle, name);
  *function = reinterpret_cast<Function>(found);
}

int32_t load_all(kiln_error* error) {
  void* handle = nullptr;
  for (int i = 0; i < kCarriedCount; ++i) {
    const bool is_last = i + 1 == kCarriedCount;
    handle = is_last ? nullptr : dlopen(kCarried[i].soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle != nullptr) continue;
    const int32_t status = load_copy(kCarried[i], &handle, error);
    if (status != KILN_OK) return status;
  }
  find_in_scope(handle, "TVMFFIErrorMoveFromRaised", &runtime.move_from_raised);
  find_in_scope(handle, "TVMFFIObjectDecRef", &runtime.release);
  find_in_scope(handle, "TVMFFIEnvSetStream", &runtime.set_stream);
  library.store(handle, std::memory_order_release);
  return KILN_OK;
}

bool is_one_of(TvmBytes kind, const char* const* names, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (kind.size == strlen(names[i]) && memcmp(kind.data, names[i], kind.size) == 0) return true;
  }
  return false;
}

kiln_status status_of(TvmBytes kind) {
  static constexpr const char* kAboutArguments[] = {"ValueError", "TypeError", "IndexError",
                                                    "KeyError", "AttributeError"};
  static constexpr const char* kUnsupported[] = {"NotImplementedError"};
  if (is_one_of(kind, kAboutArguments, 5)) return KILN_INVALID_ARGUMENT;
  return is_one_of(kind, kUnsupported, 1) ? KILN_UNSUPPORTED : KILN_DEVICE_ERROR;
}

int32_t take_error(const TvmFunction& function, int code, kiln_error* error) {
  void* raised = nullptr;
  if (runtime.move_from_raised != nullptr) runtime.move_from_raised(&raised);
  if (raised == nullptr) {
    return fail(error, KILN_DEVICE_ERROR, "%s: %s returned %d and raised no error that says why",
                function.op, function.symbol, code);
  }
  const auto* const what =
      reinterpret_cast<const TvmError*>(static_cast<const char*>(raised) + kTvmObjectHeaderBytes);
  const int32_t status = fail(error, status_of(what->kind), "%s: %.*s: %.*s", function.op,
                              static_cast<int>(what->kind.size), what->kind.data,
                              static_cast<int>(what->message.size), what->message.data);
  if (runtime.release != nullptr) runtime.release(raised);
  return status;
}

// A stream of tvm-ffi's environment, of this thread, for as long as the call lasts.
class CurrentStream {
 public:
  explicit CurrentStream(const Placement& placement) : device_(placement.device) {
    if (device_.device_type == kDLCPU || runtime.set_stream == nullptr) return;
    is_set_ =
        runtime.set_stream(device_.device_type, device_.device_id, placement.stream, &before_) == 0;
  }
  ~CurrentStream() {
    if (is_set_) runtime.set_stream(device_.device_type, device_.device_id, before_, nullptr);
  }
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  DLDevice device_;
  void* before_ = nullptr;
  bool is_set_ = false;
};

// Null where it is not there, and then the status says why.
TvmCall find_function(TvmFunction& function, int32_t* status, kiln_error* error) {
  void* address = function.address.load(std::memory_order_acquire);
  if (address == nullptr) {
    *status = load_carried(error);
    if (*status != KILN_OK) return nullptr;
    address = dlsym(library.load(std::memory_order_acquire), function.symbol);
    if (address == nullptr) {
      *status = fail(error, KILN_UNSUPPORTED, "%s: %s does not export %s", function.op,
                     kCarried[kCarriedCount - 1].soname, function.symbol);
      return nullptr;
    }
    function.address.store(address, std::memory_order_release);
  }
  return reinterpret_cast<TvmCall>(address);
}

}  // namespace

int32_t load_carried(kiln_error* error) {
  if (library.load(std::memory_order_acquire) != nullptr) return KILN_OK;
  pthread_mutex_lock(&loading);
  const bool is_loaded = library.load(std::memory_order_relaxed) != nullptr;
  const int32_t status = is_loaded ? static_cast<int32_t>(KILN_OK) : load_all(error);
  pthread_mutex_unlock(&loading);
  return status;
}

TvmValue& TvmArguments::next(int32_t type_index) {
  TvmValue& value = values_[count_++];
  value = {type_index, 0, {0}};
  return value;
}

void TvmArguments::add(const Tensor& tensor, int dimensions) {
  if (!tensor.present) {
    next(kTvmNone);
    return;
  }
  const DTypeFacts& type = kDTypes[static_cast<int32_t>(tensor.dtype)];
  DLTensor& view = tensors_[tensor_count_++];
  view = {tensor.data,
          device_,
          dimensions,
          {type.code, type.bits, 1},
          const_cast<int64_t*>(tensor.shape),
          const_cast<int64_t*>(tensor.stride),
          0};
  next(kTvmDlTensor).as_pointer = &view;
}

void TvmArguments::add(int64_t number) {
  next(kTvmInt).as_int = number;
}

void TvmArguments::add(double number) {
  next(kTvmFloat).as_float = number;
}

void TvmArguments::add(const char* text) {
  next(kTvmCString).as_c_string = text;
}

int32_t call_tvm_ffi(TvmFunction& function, const TvmArguments& arguments,
                     const Placement& placement, kiln_error* error) {
  int32_t status = KILN_OK;
  const TvmCall call = find_function(function, &status, error);
  if (call == nullptr) return status;
  const CurrentStream stream(placement);
  TvmValue result = {kTvmNone, 0, {0}};
  const int code = call(nullptr, arguments.values_, arguments.count_, &result);
  if (code != 0) return take_error(function, code, error);
  if (result.type_index < kTvmFirstObject) return KILN_OK;
  if (runtime.release != nullptr) runtime.release(result.as_pointer);
  return fail(error, KILN_UNSUPPORTED,
              "%s: %s returned an object of tvm-ffi (type %d); expected nothing, since outputs are "
              "arguments",
              function.op, function.symbol, static_cast<int>(result.type_index));
}

}  // namespace kiln::sdk
