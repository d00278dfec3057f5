// SPDX-License-Identifier: Apache-2.0
//
// The C API: kiln.h over get_kernel and select. Nothing is decided here; exceptions become codes
// and texts, C structs become requests.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.hpp"
#include "call/table.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "install/resolution_json.hpp"
#include "install/tuned.hpp"
#include "kiln/kernel.hpp"
#include "kiln/kiln.h"

struct kiln_cancel {
  std::stop_source source;
};

struct kiln_kernel {
  explicit kiln_kernel(kiln::Kernel found) : kernel(std::move(found)) {}
  kiln::Kernel kernel;
  std::once_flag explained;
  std::string explanation;
  std::string refused;
};

namespace kiln {
namespace {

/// A text that is longer than `room` without its middle: in whole lines if it has lines, and never
/// with half a UTF-8 character. Its end, with what to do, gets the larger part.
std::string without_middle(std::string_view text, std::size_t room) {
  constexpr std::string_view kCut = " [...] ";
  const auto in_character = [&](std::size_t at) { return (text[at] & 0xc0) == 0x80; };
  std::size_t tail = text.size() - 2 * (room - kCut.size()) / 3;
  if (const std::size_t line = text.find('\n', tail); line != text.npos) tail = line;
  while (tail < text.size() && in_character(tail)) ++tail;
  std::size_t head = room - kCut.size() - (text.size() - tail);
  if (const std::size_t line = text.rfind('\n', head - 1); line != text.npos) head = line + 1;
  while (head > 0 && in_character(head)) --head;
  return std::string(text.substr(0, head)) + std::string(kCut) + std::string(text.substr(tail));
}

/// The thread's latest failure, whole: a kiln_error cannot hold the table of a NO_VARIANT.
std::string& failure_text() noexcept {
  thread_local std::string text;
  return text;
}

void keep_failure(std::string_view text) noexcept {
  try {
    failure_text() = text;
  } catch (const std::bad_alloc&) {
    failure_text().clear();
  }
}

std::int32_t fail(kiln_error* error, ErrorCode code, std::string_view text) noexcept {
  const auto number = static_cast<std::int32_t>(code);
  keep_failure(text);
  if (error == nullptr) return number;
  error->status = number;
  try {
    constexpr std::size_t kRoom = sizeof(error->text) - 1;
    const std::string kept = text.size() > kRoom ? without_middle(text, kRoom) : std::string(text);
    std::memcpy(error->text, kept.c_str(), kept.size() + 1);
  } catch (const std::bad_alloc&) {
    error->text[0] = '\0';
  }
  return number;
}

/// No exception leaves a C function, and pthread_cancel waits for its end: a thread that ends in
/// the middle would unwind through frames that must not throw, and the process would abort. So it
/// is in the caller's callback, too. One that calls pthread_exit itself has been told not to, and
/// aborts here, in this noexcept frame, wherever it was called from.
template <class Body>
std::int32_t guarded(kiln_error* error, const Body& body) noexcept {
  const NoCancel whole;
  try {
    body();
    return KILN_SUCCESS;
  } catch (const Error& failure) {
    return fail(error, failure.code(), failure.what());
  } catch (const std::exception& failure) {
    return fail(error, ErrorCode::kInternal, failure.what());
  } catch (...) {  // from a callback that is C++ on the other side
    return fail(error, ErrorCode::kInternal, "the event callback threw something");
  }
}

[[noreturn]] void refuse(const char* function, const std::string& found) {
  throw Error(ErrorCode::kUsage, std::string(function) + ": " + found);
}

/// The caller's struct at the size that this library knows: what an older caller has not is zero,
/// and what a newer one has beyond must be.
kiln_request at_our_size(const kiln_request* given, const char* function) {
  if (given == nullptr) refuse(function, "the request is NULL");
  constexpr std::size_t kOldest = offsetof(kiln_request, registry);
  const std::size_t size = given->struct_size;
  if (size < kOldest) {
    refuse(function, "the request's struct_size is " + std::to_string(size) +
                         ", expected sizeof(kiln_request), " +
                         std::to_string(sizeof(kiln_request)));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  kiln_request request{};
  if (size > sizeof request &&
      std::any_of(bytes + sizeof request, bytes + size, [](unsigned char b) { return b != 0; })) {
    refuse(function, "the request uses fields that libkiln " KILN_VERSION
                     " does not have. Install the libkiln that belongs to the header");
  }
  std::memcpy(&request, given, std::min(size, sizeof request));
  return request;
}

Device device_of(const kiln_request& request, const char* function) {
  switch (request.device_kind) {
    case KILN_DEVICE_AUTO:
      return Device::automatic();
    case KILN_DEVICE_CPU:
      return Device::cpu();
    case KILN_DEVICE_CUDA:
      if (request.device_ordinal >= 0) return Device::cuda(request.device_ordinal);
      refuse(function, "device_ordinal is " + std::to_string(request.device_ordinal));
    default:
      refuse(function, "device_kind is " + std::to_string(request.device_kind) +
                           ", expected a kiln_device_kind");
  }
}

LoadMode load_mode_of(const kiln_request& request, const char* function) {
  if (request.load_mode == KILN_LOAD_MEMORY) return LoadMode::kMemory;
  if (request.load_mode == KILN_LOAD_PATH) return LoadMode::kPath;
  refuse(function,
         "load_mode is " + std::to_string(request.load_mode) + ", expected a kiln_load_mode");
}

std::string_view text_or_empty(const char* text) {
  return text != nullptr ? std::string_view(text) : std::string_view();
}

Observer observer_of(const kiln_request& request) {
  if (request.on_event == nullptr) return {};
  return [tell = request.on_event, user = request.user](const Event& event) {
    const std::string stage(to_string(event.stage));
    const kiln_event c{sizeof(kiln_event), 0,          stage.c_str(), event.subject.c_str(),
                       event.note.c_str(), event.done, event.total};
    tell(&c, user);
  };
}

std::vector<std::string_view> texts_of(const char* const* list) {
  std::vector<std::string_view> texts;
  for (; list != nullptr && *list != nullptr; ++list) texts.emplace_back(*list);
  return texts;
}

/// The kernel's tables for people, written once, by whoever asks first. Null: out of memory.
const kiln_kernel* explained(const kiln_kernel* kernel) noexcept {
  const NoCancel whole;
  try {
    auto* const self = const_cast<kiln_kernel*>(kernel);
    std::call_once(self->explained, [&] {
      self->explanation = self->kernel.resolution().explain();
      for (const Resolution& each : self->kernel.fallback()) self->refused += each.explain();
    });
    return kernel;
  } catch (const std::exception&) {
    return nullptr;
  }
}

Request request_of(const kiln_request* given, const char* function) {
  const kiln_request c = at_our_size(given, function);
  Request request;
  request.version = c.version;
  request.device = device_of(c, function);
  request.registry = text_or_empty(c.registry);
  request.variant = text_or_empty(c.variant);
  request.cache = text_or_empty(c.cache);
  request.allow_jit = c.no_jit == 0;
  request.refresh = c.refresh != 0;
  request.offline = c.offline != 0;
  request.lock = text_or_empty(c.lock);
  request.from = text_or_empty(c.from);
  request.load_mode = load_mode_of(c, function);
  for (const std::string_view text : texts_of(c.fallback)) {
    request.fallback.push_back(parse_fallback(text));
  }
  for (const std::string_view text : texts_of(c.deny)) request.deny.emplace_back(text);
  request.all_gpus = c.all_gpus != 0;
  if (c.reserved != 0) refuse(function, "the request's reserved field is not 0");
  request.on_event = observer_of(c);
  if (c.cancel != nullptr) request.stop = c.cancel->source.get_token();
  return request;
}

std::string_view name_of(const char* name, const char* function) {
  if (name == nullptr) refuse(function, "the name is NULL");
  return name;
}

/// For kiln_release_text.
char* copied(const std::string& text) {
  char* const copy = ::strdup(text.c_str());
  if (copy == nullptr) throw std::bad_alloc();
  return copy;
}

/// The code of a package's answer, in the caller's struct too.
template <class Call>
std::int32_t call_package(kiln_error* error, const Call& call) noexcept {
  const NoCancel whole;
  kiln_error met;
  met.text[0] = '\0';
  const std::int32_t status = call(&met);
  if (status == KILN_OK) return KILN_SUCCESS;
  met.status = static_cast<std::int32_t>(failure_of(status, met));
  keep_failure(met.text);
  if (error != nullptr) *error = met;
  return met.status;
}

}  // namespace
}  // namespace kiln

using kiln::fail;
using kiln::guarded;

const char* kiln_version(void) {
  return KILN_VERSION;
}

const char* kiln_failure_text(void) {
  return kiln::failure_text().c_str();
}

kiln_cancel* kiln_new_cancel(void) {
  try {
    return new kiln_cancel;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void kiln_cancel_now(kiln_cancel* cancel) {
  const kiln::NoCancel whole;  // it runs what waits for the stop, which writes to wake others
  if (cancel != nullptr) cancel->source.request_stop();
}

void kiln_release_cancel(kiln_cancel* cancel) {
  const kiln::NoCancel whole;
  delete cancel;
}

std::int32_t kiln_get_kernel(const char* name, const kiln_request* request, kiln_kernel** kernel,
                             kiln_error* error) {
  return guarded(error, [&] {
    if (kernel == nullptr) kiln::refuse("kiln_get_kernel", "there is no place for the kernel");
    *kernel = new kiln_kernel(kiln::get_kernel(kiln::name_of(name, "kiln_get_kernel"),
                                               kiln::request_of(request, "kiln_get_kernel")));
  });
}

void kiln_release_kernel(kiln_kernel* kernel) {
  const kiln::NoCancel whole;
  delete kernel;
}

std::int32_t kiln_has_kernel(const char* name, const kiln_request* request, kiln_error* error) {
  return guarded(error, [&] {
    const kiln::Availability found = kiln::has_kernel(kiln::name_of(name, "kiln_has_kernel"),
                                                      kiln::request_of(request, "kiln_has_kernel"));
    if (!found) throw kiln::Error(found.code, found.reason);
  });
}

std::int32_t kiln_prefetch(const char* name, const kiln_request* request, kiln_error* error) {
  return guarded(error, [&] {
    kiln::prefetch(kiln::name_of(name, "kiln_prefetch"),
                   kiln::request_of(request, "kiln_prefetch"));
  });
}

// A Kernel's texts are whole std::strings, so that their data ends with a NUL.
const char* kiln_kernel_name(const kiln_kernel* kernel) {
  return kernel->kernel.name().data();
}

std::int32_t kiln_kernel_version(const kiln_kernel* kernel) {
  return kernel->kernel.version();
}

const char* kiln_kernel_variant(const kiln_kernel* kernel) {
  return kernel->kernel.variant().data();
}

DLDevice kiln_kernel_device(const kiln_kernel* kernel) {
  return kiln::dl_device(kernel->kernel.device());
}

const char* kiln_kernel_library(const kiln_kernel* kernel) {
  return kernel->kernel.library().c_str();
}

const char* kiln_kernel_explanation(const kiln_kernel* kernel) {
  const kiln_kernel* const self = kiln::explained(kernel);
  return self != nullptr ? self->explanation.c_str() : nullptr;
}

const char* kiln_kernel_fallback(const kiln_kernel* kernel) {
  const kiln_kernel* const self = kiln::explained(kernel);
  return self != nullptr ? self->refused.c_str() : nullptr;
}

const kiln_package* kiln_kernel_package(const kiln_kernel* kernel) {
  return &kernel->kernel.package();
}

std::int32_t kiln_find_op(const kiln_kernel* kernel, const char* name, const kiln_op** op,
                          kiln_error* error) {
  return guarded(error, [&] {
    if (kernel == nullptr || op == nullptr) {
      kiln::refuse("kiln_find_op", "the kernel, or the place for the op, is NULL");
    }
    *op = &kernel->kernel.op(kiln::name_of(name, "kiln_find_op")).c();
  });
}

std::int32_t kiln_workspace_bytes(const kiln_op* op, const kiln_call* call, size_t* bytes,
                                  kiln_error* error) {
  if (op == nullptr || call == nullptr || bytes == nullptr) {
    return fail(error, kiln::ErrorCode::kUsage, "kiln_workspace_bytes: an argument is NULL");
  }
  return kiln::call_package(
      error, [&](kiln_error* into) { return op->workspace_bytes(call, bytes, into); });
}

std::int32_t kiln_run(const kiln_op* op, const kiln_call* call, kiln_error* error) {
  if (op == nullptr || call == nullptr) {
    return fail(error, kiln::ErrorCode::kUsage, "kiln_run: the op or the call is NULL");
  }
  return kiln::call_package(error, [&](kiln_error* into) { return op->run(call, into); });
}

std::int32_t kiln_resolve(const char* name, const kiln_request* request, char** json,
                          kiln_error* error) {
  return guarded(error, [&] {
    if (json == nullptr) kiln::refuse("kiln_resolve", "there is no place for the document");
    kiln::Install install(kiln::name_of(name, "kiln_resolve"),
                          kiln::request_of(request, "kiln_resolve"));
    kiln::Choice choice = install.choose();
    if (choice.resolution.chosen) {
      choice.resolution.tuned = kiln::read_tuned(choice.resolution, choice.variant()).text;
    }
    *json = kiln::copied(kiln::dump_json(kiln::with_schema("resolve", kiln::to_json(choice))));
    choice.variant();  // throws where none was chosen
  });
}

std::int32_t kiln_dev_files(const char* name, const kiln_request* request, char** json,
                            kiln_error* error) {
  return guarded(error, [&] {
    if (json == nullptr) kiln::refuse("kiln_dev_files", "there is no place for the document");
    const kiln::DevFiles dev = kiln::Install(kiln::name_of(name, "kiln_dev_files"),
                                             kiln::request_of(request, "kiln_dev_files"))
                                   .run_dev();
    kiln::Json files = kiln::Json::array();
    for (const kiln::ArchiveFile& file : dev.files) {
      files.push_back({{"path", file.path}, {"digest", file.digest.str()}});
    }
    *json = kiln::copied(kiln::dump_json({{"name", dev.name},
                                          {"version", dev.version},
                                          {"folder", dev.folder.string()},
                                          {"files", std::move(files)}}));
  });
}

void kiln_release_text(char* text) {
  std::free(text);
}
