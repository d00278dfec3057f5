// SPDX-License-Identifier: Apache-2.0
#include "call/load.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/fork.hpp"
#include "base/posix.hpp"
#include "base/process.hpp"
#include "base/quote.hpp"
#include "base/signals.hpp"
#include "call/table.hpp"
#include "documents/variant.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "probe/driver.hpp"
#include "settings/environment.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

// Linux 6.3; on an older kernel the flag is EINVAL and the call is repeated without it.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kiln {
namespace {

/// A library in the cache, and what its config promises of it.
struct Library {
  const std::filesystem::path& path;
  const Config& config;
  std::string_view subject;
  const ArchiveFile& promised = library_file(config);

  [[noreturn]] void fail(const std::string& found) const {
    throw Error(ErrorCode::kLoad, "load " + std::string(subject) + ": " + found);
  }
  [[noreturn]] void fail_broken(const std::string& found) const {
    fail(found + ". The package is broken: tell its publisher, or ask for another version");
  }
};

/// The libraries of this process, by digest. Never destroyed: their code may run until the end.
struct Libraries {
  std::mutex mutex;
  std::map<Digest, void*> handles;
  std::set<int> numbers;                             // descriptors that a loaded copy was opened by
  std::map<std::filesystem::path, FileLock> leases;  // by library file
};

Libraries& libraries() {
  const NoFork whole;
  static Libraries* const instance = new Libraries;
  return *instance;
}

constexpr std::string_view kCloseSome =
    ". Raise the limit of open files (ulimit -n), or close some";

void check_elf(std::string_view head, const Library& library) {
  Elf64_Ehdr header{};
  if (head.size() < sizeof(header)) library.fail("the library is too short for an ELF file");
  std::memcpy(&header, head.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN) {
    library.fail("the library is no 64-bit little-endian ELF shared object");
  }
  const Arch arch = library.config.needs.cpu.arch;
  const int expected = arch == Arch::kX86_64 ? EM_X86_64 : EM_AARCH64;
  if (header.e_machine != expected) {
    library.fail("the library is for ELF machine " + std::to_string(header.e_machine) +
                 ", its config says " + std::string(to_string(arch)) + " (" +
                 std::to_string(expected) + ")");
  }
}

/// Hashes the file and hands its verified bytes on, piece by piece and not yet as a whole: `sink`
/// must not act on them before this returns.
void verify_file(const Library& library, const Sink& sink) {
  const std::filesystem::path inside(library.promised.path);
  std::filesystem::path folder = library.path;
  for (auto up = std::distance(inside.begin(), inside.end()); up > 0; --up) {
    folder = folder.parent_path();
  }
  std::string head;
  const auto keep_head = [&](std::string_view piece) {
    head += piece.substr(0, sizeof(Elf64_Ehdr) - head.size());
    sink(piece);
  };
  const std::string what = "library of " + std::string(library.subject);
  if (!verify_unpacked(folder, library.promised, what, keep_head)) {
    fail_missing_library(library.path);
  }
  check_elf(head, library);
}

void expect(std::string_view what, const std::string& found, const std::string& expected,
            const Library& library) {
  if (found == expected) return;
  library.fail_broken("the library's table has " + std::string(what) + " " + found + ", expected " +
                      expected);
}

std::string quote_text(const char* text) {
  return quote(text != nullptr ? text : "");
}

/// Refuses a table before anything beyond it is read: its own size first, then its ABI version. A
/// table may be smaller than this Kiln's, or larger: what a later minor appended is read nowhere
/// but behind struct_size.
void check_package(const kiln_package* package, const Library& library) {
  const Config& config = library.config;
  if (package == nullptr) library.fail_broken(config.symbol + " returned no table");
  if (package->struct_size < KILN_PACKAGE_FIRST_BYTES) {
    library.fail_broken("the library's table has " + std::to_string(package->struct_size) +
                        " bytes, expected at least " + std::to_string(KILN_PACKAGE_FIRST_BYTES));
  }
  if (package->abi_major != KILN_ABI_MAJOR) {
    library.fail(
        "the library's table has ABI major " + std::to_string(package->abi_major) + ", expected " +
        std::to_string(KILN_ABI_MAJOR) +
        ". Ask for a version of the package that was built for this Kiln, or " +
        (package->abi_major > KILN_ABI_MAJOR ? "install a newer Kiln" : "rebuild the package"));
  }
  expect("name", quote_text(package->name), quote(config.name), library);
  expect("version", std::to_string(package->version), std::to_string(config.version), library);
  expect("build id", quote_text(package->build_id), quote(config.build_id), library);
  expect("device type", std::to_string(package->device_type),
         std::to_string(config.needs.is_cpu() ? kDLCPU : kDLCUDA), library);
  if (package->ops == nullptr || package->op_count == 0 || package->prepare == nullptr) {
    library.fail_broken("the library's table has no ops or no prepare function");
  }
  if (package->op_stride < KILN_OP_FIRST_BYTES) {
    library.fail_broken("the library's ops have " + std::to_string(package->op_stride) +
                        " bytes each, expected at least " + std::to_string(KILN_OP_FIRST_BYTES));
  }
  for (std::uint32_t i = 0; i < package->op_count; ++i) {
    const kiln_op& op = op_at(*package, i);
    if (op.struct_size < KILN_OP_FIRST_BYTES || op.name == nullptr || op.schema == nullptr ||
        op.workspace_bytes == nullptr || op.run == nullptr) {
      library.fail_broken("op " + std::to_string(i) + " of the library's table is incomplete");
    }
  }
}

void* open_library(const std::string& path, const Library& library, int flags) {
  // RTLD_LOCAL: two versions export the same names.
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    library.fail("the dynamic linker refuses " + library.path.string() + ": " +
                 (why != nullptr ? why : "no reason given") +
                 std::string(path == library.path ? "" : cure_without_proc()));
  }
  return handle;
}

/// The library's own export: dlsym finds those of the libraries that it depends on as well, and
/// config.symbol must not call into one of them.
kiln_package_fn entry_of(void* handle, const Library& library) {
  const std::string& symbol = library.config.symbol;
  void* const found = ::dlsym(handle, symbol.c_str());
  const link_map* map = nullptr;
  Dl_info where{};
  const bool known = found != nullptr && ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 &&
                     ::dladdr(found, &where) != 0;
  if (!known || reinterpret_cast<std::uintptr_t>(where.dli_fbase) != map->l_addr) {
    library.fail_broken("the library does not export " + symbol);
  }
  return reinterpret_cast<kiln_package_fn>(found);
}

/// Copies are opened by "/proc/self/fd/N", and glibc takes a library for loaded already if one was
/// opened by the same path. N stays open while the library is loaded; but a host that closes all
/// descriptors frees it, so a loaded library's number is never used twice.
FileDescriptor numbered_copy(const Library& library, const Libraries& loaded) {
  FileDescriptor copy = sealed_copy(library.config.name, library.path, library.subject,
                                    [&](const Sink& sink) { verify_file(library, sink); });
  if (!loaded.numbers.contains(copy.get())) return copy;
  const int above = *loaded.numbers.rbegin() + 1;
  FileDescriptor moved(::fcntl(copy.get(), F_DUPFD_CLOEXEC, above));
  if (!moved.valid()) {
    library.fail("no new descriptor for the copy in memory: " +
                 std::generic_category().message(errno) + std::string(kCloseSome));
  }
  return moved;
}

/// Loads a library and checks its table before anything is kept of it: one that is refused is
/// unloaded, and its copy's number is free again. `path` is what glibc knows it by.
void* open_checked(const std::string& path, const Library& library) {
  void* const handle = open_library(path, library, 0);
  try {
    check_package(entry_of(handle, library)(), library);
    // For good: the driver keeps pointers into the image.
    open_library(path, library, RTLD_NODELETE);
  } catch (...) {
    ::dlclose(handle);
    throw;
  }
  return handle;
}

void* open_copy(const Library& library, Libraries& loaded) {
  FileDescriptor copy = numbered_copy(library, loaded);
  const std::string path = "/proc/self/fd/" + std::to_string(copy.get());
  const auto keep = [&] {
    loaded.numbers.insert(copy.get());
    static_cast<void>(copy.release());
  };
  void* handle = nullptr;
  try {
    handle = open_checked(path, library);
  } catch (...) {
    // A library may be marked never to be unloaded.
    if (::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD) != nullptr) keep();
    throw;
  }
  keep();
  return handle;
}

void* open_by_path(const Library& library) {
  verify_file(library, [](std::string_view) {});
  return open_checked(library.path.string(), library);
}

}  // namespace

FileDescriptor sealed_copy(const std::string& name, const std::filesystem::path& file,
                           std::string_view subject, const std::function<void(const Sink&)>& fill) {
  const NoFileSizeSignal quiet;  // a copy in memory counts against RLIMIT_FSIZE as well
  const auto fail = [subject](std::string_view call, std::string_view next_step) {
    throw Error(ErrorCode::kLoad, "load " + std::string(subject) + ": " + std::string(call) + ": " +
                                      std::generic_category().message(errno) +
                                      std::string(next_step));
  };
  const std::string shown = "kiln:" + name;
  int fd = ::memfd_create(shown.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) {
    fd = ::memfd_create(shown.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) fail("memfd_create", kCloseSome);
  if (fd < 0) {
    fail("memfd_create",
         ". Kiln runs only bytes that it has hashed in memory: allow this call in the sandbox, or "
         "set KILN_LOAD_MODE=path where the cache is not writable");
  }
  FileDescriptor copy(fd);
  fill([&](std::string_view piece) { write_all(copy.get(), piece, file); });
  const int seals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (::fcntl(copy.get(), F_ADD_SEALS, seals) != 0) fail("sealing the copy in memory", "");
  return copy;
}

LoadMode chosen_load_mode(LoadMode asked) {
  const std::string_view word = environment().text("KILN_LOAD_MODE");
  if (word == "path") return LoadMode::kPath;
  if (word.empty() || word == "memory") return asked;
  throw Error(ErrorCode::kUsage, "load: KILN_LOAD_MODE is " + quote(word) +
                                     ", expected path or memory. Correct or unset it");
}

const kiln_package& load_library(const std::filesystem::path& file, const Config& config,
                                 std::string_view subject, LoadMode mode, FileLock lease) {
  const Library library{file, config, subject};
  const NoFork whole;
  Libraries& loaded = libraries();
  const std::scoped_lock held(loaded.mutex);
  const auto known = loaded.handles.find(library.promised.digest);
  void* handle = known != loaded.handles.end() ? known->second : nullptr;
  if (handle == nullptr) {
    handle = mode == LoadMode::kPath ? open_by_path(library) : open_copy(library, loaded);
    loaded.handles.emplace(library.promised.digest, handle);
  }
  // Once more: the same bytes may be promised by another config.
  const kiln_package* const package = entry_of(handle, library)();
  check_package(package, library);
  if (lease.held()) loaded.leases.try_emplace(file, std::move(lease));
  return *package;
}

void prepare(const kiln_package& package, Device device, const std::string& subject) {
  kiln_error error{};
  const std::int32_t status = package.prepare(dl_device(device), &error);
  if (status == KILN_OK) return;
  failure_of(status, error);
  throw Error(ErrorCode::kDevice,
              "prepare " + subject + " on " + to_string(device) + ": " + error.text);
}

const kiln_package& load_prepared(Installed& installed, LoadMode asked) {
  const Package& package = installed.package;
  const Device device = installed.choice.resolution.device;
  const kiln_package& table = load_library(package.library, package.config, package.subject,
                                           chosen_load_mode(asked), std::move(installed.lease));
  if (device.kind == Device::Kind::kCuda) {
    if (const std::string problem = start_cuda(); !problem.empty()) {
      throw Error(ErrorCode::kDevice, "prepare " + package.subject + ": " + problem);
    }
  }
  prepare(table, device, package.subject);
  return table;
}

}  // namespace kiln
