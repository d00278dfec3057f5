// SPDX-License-Identifier: Apache-2.0
#include "call/load.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/fork.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/signals.hpp"
#include "call/table.hpp"
#include "documents/variant.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"
#include "store/inside.hpp"
#include "verify/verify.hpp"

// Linux 6.3; on an older kernel the flag is EINVAL and the call is repeated without it.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kiln {
namespace {

constexpr const char* kTellPublisher =
    "The package is broken: tell its publisher, or ask for another version";

[[noreturn]] void fail(std::string_view subject, const std::string& found) {
  throw Error(ErrorCode::kLoad, "load " + std::string(subject) + ": " + found);
}

/// The libraries of this process, by digest. Never destroyed: their code may run until the end.
struct Libraries {
  std::mutex mutex;
  std::map<Digest, void*> handles;
  std::set<int> numbers;                             // descriptors that a copy was ever opened by
  std::map<std::filesystem::path, FileLock> leases;  // by library file
};

Libraries& libraries() {
  const NoFork whole;
  static Libraries* const instance = new Libraries;
  return *instance;
}

FileDescriptor memory_file(const std::string& name, std::string_view subject) {
  int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) {
    fd = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0) {
    fail(subject, "memfd_create: " + std::generic_category().message(errno) +
                      ". Kiln runs only bytes that it has hashed in memory: allow this call in the "
                      "sandbox, or set KILN_LOAD_MODE=path where the cache is not writable");
  }
  return FileDescriptor(fd);
}

void check_elf(std::string_view head, Arch arch, std::string_view subject) {
  Elf64_Ehdr header{};
  if (head.size() < sizeof(header)) fail(subject, "the library is too short for an ELF file");
  std::memcpy(&header, head.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN) {
    fail(subject, "the library is no 64-bit little-endian ELF shared object");
  }
  const int expected = arch == Arch::kX86_64 ? EM_X86_64 : EM_AARCH64;
  if (header.e_machine != expected) {
    fail(subject, "the library is for ELF machine " + std::to_string(header.e_machine) +
                      ", its config says " + std::string(to_string(arch)) + " (" +
                      std::to_string(expected) + ")");
  }
}

/// The library's file, opened without following a link below the cache's root: the variant's folder
/// is <root>/unpacked/<hex>.
FileDescriptor open_file(const std::filesystem::path& path, const ArchiveFile& promised) {
  std::filesystem::path folder = path;
  for (const std::filesystem::path& each : std::filesystem::path(promised.path)) {
    static_cast<void>(each);
    folder = folder.parent_path();
  }
  const std::filesystem::path root = folder.parent_path().parent_path();
  FileDescriptor file = open_inside(root, path.lexically_relative(root));
  if (!file.valid()) fail_missing_library(path);
  return file;
}

/// Hashes the file and hands its verified bytes on, piece by piece and not yet as a whole: `sink`
/// must not act on them before this returns.
void verify_file(const std::filesystem::path& path, const ArchiveFile& promised,
                 const Config& config, std::string_view subject,
                 const std::function<void(std::string_view)>& sink) {
  const FileDescriptor file = open_file(path, promised);
  StreamVerifier verifier({"", promised.digest, promised.size},
                          {"library of " + std::string(subject), path.string(), kFetchAgain});
  std::array<char, sizeof(Elf64_Ehdr)> head{};
  read_pieces(file.get(), path, [&](std::string_view piece) {
    if (verifier.seen() < head.size()) {
      const auto at = static_cast<std::size_t>(verifier.seen());
      piece.copy(head.data() + at, head.size() - at);
    }
    verifier.update(piece);
    sink(piece);
  });
  verifier.finish();
  check_elf({head.data(), std::min<std::size_t>(head.size(), promised.size)}, config.needs.cpu.arch,
            subject);
}

/// A sealed copy of the file in memory, hashed while it was copied.
FileDescriptor sealed_copy(const std::filesystem::path& path, const ArchiveFile& promised,
                           const Config& config, std::string_view subject) {
  const NoFileSizeSignal quiet;  // a copy in memory counts against RLIMIT_FSIZE as well
  FileDescriptor copy = memory_file("kiln:" + config.name, subject);
  verify_file(path, promised, config, subject,
              [&](std::string_view piece) { write_all(copy.get(), piece, path); });
  const int seals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (::fcntl(copy.get(), F_ADD_SEALS, seals) != 0) {
    fail(subject, "sealing the copy in memory: " + std::generic_category().message(errno));
  }
  return copy;
}

template <class Value>
void expect(std::string_view what, const Value& found, const Value& expected,
            std::string_view subject) {
  if (found == expected) return;
  std::string text = "the library's table has ";
  text += what;
  if constexpr (std::is_arithmetic_v<Value>) {
    fail(subject, text + " " + std::to_string(found) + ", expected " + std::to_string(expected) +
                      ". " + kTellPublisher);
  } else {
    fail(subject, text + " '" + std::string(found) + "', expected '" + std::string(expected) +
                      "'. " + kTellPublisher);
  }
}

std::string_view text_or_empty(const char* text) {
  return text != nullptr ? text : "";
}

void check_op(const kiln_op& op, std::uint32_t position, std::string_view subject) {
  if (op.struct_size < KILN_OP_FIRST_BYTES || op.name == nullptr || op.schema == nullptr ||
      op.workspace_bytes == nullptr || op.run == nullptr) {
    fail(subject, "op " + std::to_string(position) + " of the library's table is incomplete. " +
                      kTellPublisher);
  }
}

/// Refuses a table before anything beyond it is read: its own size first, then its ABI version. A
/// table may be smaller than this Kiln's, or larger: what a later minor appended is read nowhere
/// but behind struct_size.
void check_package(const kiln_package* package, const Config& config, std::string_view subject) {
  if (package == nullptr) fail(subject, config.symbol + " returned no table. " + kTellPublisher);
  if (package->struct_size < KILN_PACKAGE_FIRST_BYTES) {
    fail(subject, "the library's table has " + std::to_string(package->struct_size) +
                      " bytes, expected at least " + std::to_string(KILN_PACKAGE_FIRST_BYTES) +
                      ". " + kTellPublisher);
  }
  if (package->abi_major != KILN_ABI_MAJOR) {
    fail(subject, "the library's table has ABI major " + std::to_string(package->abi_major) +
                      ", expected " + std::to_string(KILN_ABI_MAJOR) +
                      ". Ask for a version of the package that was built for this Kiln, or " +
                      (package->abi_major > KILN_ABI_MAJOR ? "install a newer Kiln"
                                                           : "rebuild the package"));
  }
  expect("name", text_or_empty(package->name), std::string_view(config.name), subject);
  expect<int>("version", package->version, config.version, subject);
  expect("build id", text_or_empty(package->build_id), std::string_view(config.build_id), subject);
  expect<int>("device type", package->device_type, config.needs.is_cpu() ? kDLCPU : kDLCUDA,
              subject);
  if (package->ops == nullptr || package->op_count == 0 || package->prepare == nullptr) {
    fail(subject,
         std::string("the library's table has no ops or no prepare function. ") + kTellPublisher);
  }
  if (package->op_stride < KILN_OP_FIRST_BYTES) {
    fail(subject, "the library's ops have " + std::to_string(package->op_stride) +
                      " bytes each, expected at least " + std::to_string(KILN_OP_FIRST_BYTES) +
                      ". " + kTellPublisher);
  }
  for (std::uint32_t i = 0; i < package->op_count; ++i) check_op(op_at(*package, i), i, subject);
}

void* open_library(const std::filesystem::path& file, const std::string& path,
                   std::string_view subject) {
  // RTLD_LOCAL: two versions export the same names. RTLD_NODELETE: the driver keeps pointers into
  // the image.
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    fail(subject, "the dynamic linker refuses " + file.string() + ": " +
                      (why != nullptr ? why : "no reason given"));
  }
  return handle;
}

/// The library's own export: dlsym finds those of the libraries that it depends on as well, and
/// config.symbol must not call into one of them.
kiln_package_fn entry_of(void* handle, const Config& config, std::string_view subject) {
  void* const found = ::dlsym(handle, config.symbol.c_str());
  const link_map* map = nullptr;
  Dl_info where{};
  const bool known = found != nullptr && ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 &&
                     ::dladdr(found, &where) != 0;
  if (!known || reinterpret_cast<std::uintptr_t>(where.dli_fbase) != map->l_addr) {
    fail(subject, "the library does not export " + config.symbol + ". " + kTellPublisher);
  }
  return reinterpret_cast<kiln_package_fn>(found);
}

/// Copies are opened by "/proc/self/fd/N", and glibc takes a library for loaded already if one was
/// opened by the same path. N stays open until the process ends; but a host that closes all
/// descriptors frees it, so a number is never used twice.
FileDescriptor at_new_number(FileDescriptor copy, Libraries& loaded, std::string_view subject) {
  if (loaded.numbers.insert(copy.get()).second) return copy;
  const int above = *loaded.numbers.rbegin() + 1;
  FileDescriptor moved(::fcntl(copy.get(), F_DUPFD_CLOEXEC, above));
  if (!moved.valid()) {
    fail(subject, "no new descriptor for the copy in memory: " +
                      std::generic_category().message(errno) + ". Raise RLIMIT_NOFILE");
  }
  loaded.numbers.insert(moved.get());
  return moved;
}

void* open_copy(const std::filesystem::path& file, const ArchiveFile& promised,
                const Config& config, std::string_view subject, Libraries& loaded) {
  FileDescriptor copy =
      at_new_number(sealed_copy(file, promised, config, subject), loaded, subject);
  void* const handle = open_library(file, "/proc/self/fd/" + std::to_string(copy.get()), subject);
  static_cast<void>(copy.release());
  return handle;
}

void* open_by_path(const std::filesystem::path& file, const ArchiveFile& promised,
                   const Config& config, std::string_view subject) {
  verify_file(file, promised, config, subject, [](std::string_view) {});
  return open_library(file, file.string(), subject);
}

}  // namespace

LoadMode chosen_load_mode(LoadMode asked) {
  const std::string_view word = environment().text("KILN_LOAD_MODE");
  if (word == "path") return LoadMode::kPath;
  if (word.empty() || word == "memory") return asked;
  throw Error(ErrorCode::kUsage, "load: KILN_LOAD_MODE is " + quote(word) +
                                     ", expected path or memory. Correct or unset it");
}

const kiln_package& load_library(const std::filesystem::path& file, const Config& config,
                                 std::string_view subject, LoadMode mode, FileLock lease) {
  const ArchiveFile& promised = library_file(config);
  const NoFork whole;
  Libraries& loaded = libraries();
  const std::scoped_lock held(loaded.mutex);
  void*& handle = loaded.handles[promised.digest];
  if (handle == nullptr) {
    handle = mode == LoadMode::kPath ? open_by_path(file, promised, config, subject)
                                     : open_copy(file, promised, config, subject, loaded);
  }
  const kiln_package* const package = entry_of(handle, config, subject)();
  check_package(package, config, subject);
  if (lease.held()) loaded.leases.try_emplace(file, std::move(lease));
  return *package;
}

}  // namespace kiln
