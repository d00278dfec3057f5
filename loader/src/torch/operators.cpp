// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operators.h: arguments from PyTorch's stack, the op that is bound to their key and
// device, results.
#include "torch/operators.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/stable.hpp"

namespace kiln::torch {
namespace {

constexpr std::size_t kArguments = 32;
constexpr std::size_t kSlots = 64;
constexpr std::size_t kAlignment = 256;  // of a workspace
constexpr std::size_t kRoom = 1024;      // for the text of an exception

kiln_torch_kiln loader;
std::array<void*, 2> libraries;  // where PyTorch registers, for the CPU and for CUDA; never freed

/// What is larger than a Value is passed as its handle.
void* handle_of(Value value) {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr)
}

/// An operator's arguments, taken from the stack.
class Arguments {
 public:
  Arguments(std::string_view kinds, const Value* stack) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      void* const handle = handle_of(stack[i]);
      if (kinds[i] == 'T') tensors_[i].reset(handle);
      if (kinds[i] == '?' && handle != nullptr)
        tensors_[i].reset(unboxed(static_cast<Value*>(handle)));
      if (kinds[i] == 'b') wanted_ = handle;
      if (kinds[i] == 's') key_ = handle;
    }
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() {
    if (wanted_ != nullptr) functions.torch_delete_list(wanted_);
    if (key_ != nullptr) functions.torch_delete_string(key_);
  }

  void read() {
    for (std::size_t i = 0; i < kArguments; ++i) {
      if (tensors_[i]) views_[i] = view_of(tensors_[i].get());
    }
  }
  /// Null: it is None.
  const View* at(std::int32_t argument) const {
    const auto i = static_cast<std::size_t>(argument);
    return tensors_[i] ? &views_[i] : nullptr;
  }
  const View& first() const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [](const Owned& each) { return each != nullptr; });
    if (found == tensors_.end()) fail("an operator is called without a tensor");
    return views_[static_cast<std::size_t>(found - tensors_.begin())];
  }
  const char* key() const {
    const char* text = "";
    check(functions.torch_string_c_str(key_, &text), "reading a key failed in PyTorch. ");
    return text;
  }
  bool wants(std::int32_t place) const {
    if (place < 0) return true;
    Value value = 0;
    check(functions.torch_list_get_item(wanted_, static_cast<std::size_t>(place), &value),
          "reading a list failed in PyTorch. ");
    return (value & 1U) != 0;
  }

 private:
  static void* unboxed(Value* box) {
    void* const handle = handle_of(*box);
    if (functions.torch_delete_stable_ivalue != nullptr) {
      functions.torch_delete_stable_ivalue(box);
    } else {
      delete box;
    }
    return handle;
  }

  std::array<Owned, kArguments> tensors_;
  std::array<View, kArguments> views_;
  void* wanted_ = nullptr;
  void* key_ = nullptr;
};

// ---- which op a call runs ----

struct Binding {
  std::string key;
  DLDevice device{};
  const kiln_op* op = nullptr;
  std::uint32_t threads = 0;
  std::vector<kiln_attribute> attributes;
  std::deque<std::string> texts;  // that the attributes point to
  std::vector<kiln_torch_operand> operands;
  std::vector<kiln_torch_result> results;
  const Binding* next = nullptr;
};

/// One operator. Bindings are added at the front and stay: whoever reads them needs no lock.
struct Slot {
  std::string kinds;
  bool listed = false;
  std::atomic<const Binding*> bindings{nullptr};
};

// Never destroyed: a thread may call an operator while the process ends.
std::array<Slot, kSlots>& slots = *new std::array<Slot, kSlots>;
std::atomic<std::size_t> used{0};

const Binding* find(const Slot& slot, std::string_view key, DLDevice device) {
  const Binding* each = slot.bindings.load(std::memory_order_acquire);
  while (each != nullptr && (each->device.device_type != device.device_type ||
                             each->device.device_id != device.device_id || each->key != key)) {
    each = each->next;
  }
  return each;
}

const Binding& binding_of(std::size_t number, const char* key, DLDevice device) {
  const Binding* found = find(slots[number], key, device);
  if (found == nullptr) {
    std::array<char, kRoom> text{};
    const int on_gpu = device.device_type == kDLCPU ? 0 : 1;
    if (loader.bind(static_cast<std::int32_t>(number), key, on_gpu, device.device_id, text.data(),
                    text.size()) != 0) {
      throw std::runtime_error(text.data());
    }
    found = find(slots[number], key, device);
    if (found == nullptr) fail("nothing is bound to ", key);
  }
  return *found;
}

// ---- a call ----

/// Host memory for the workspaces of a thread's calls; grows to the largest.
void* host_scratch(std::size_t bytes) {
  thread_local std::vector<unsigned char> memory;
  if (memory.size() < bytes + kAlignment) memory = std::vector<unsigned char>(bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
}

/// The results of a call, and the tensors of its op in their order.
class Tensors {
 public:
  Tensors(const Binding& binding, const Arguments& arguments)
      : results_(binding.results.size()),
        parts_(binding.operands.size()),
        pointers_(binding.operands.size()) {
    for (const kiln_torch_operand& each : binding.operands) {
      if (each.result >= 0 && arguments.wants(each.wanted)) made(binding, each, arguments);
    }
    for (std::size_t i = 0; i < pointers_.size(); ++i)
      pointers_[i] = operand(binding, binding.operands[i], arguments, i);
    for (std::size_t i = 0; i < results_.size(); ++i) {  // one that nobody wants has no elements
      const std::int64_t none = 0;
      const View& like = *arguments.at(binding.results[i].like);
      if (!results_[i].tensor) results_[i].tensor = empty(&none, 1, like.dtype, like);
    }
  }

  const std::vector<const DLTensor*>& operands() const { return pointers_; }

  bool are_asked_for() const { return asked_for_; }

  /// Hands the results over.
  void give(bool listed, Value* stack) {
    void* list = nullptr;
    if (listed)
      check(functions.torch_new_list_reserve_size(results_.size(), &list),
            "making a list failed in PyTorch. ");
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const auto value = reinterpret_cast<Value>(results_[i].tensor.release());
      if (listed) {
        check(functions.torch_list_push_back(list, value), "filling a list failed in PyTorch. ");
      } else {
        stack[i] = value;
      }
    }
    if (listed) stack[0] = reinterpret_cast<Value>(list);
  }

 private:
  struct Result {
    Owned tensor;
    View view;
    std::array<std::int64_t, KILN_TORCH_DIMENSIONS> extents{};  // of a part
    std::int64_t bytes = 0;
  };

  void made(const Binding& binding, const kiln_torch_operand& operand, const Arguments& arguments) {
    Result& result = results_[static_cast<std::size_t>(operand.result)];
    if (result.tensor) return;
    asked_for_ = true;
    const kiln_torch_result& wanted = binding.results[static_cast<std::size_t>(operand.result)];
    const View& like = *arguments.at(wanted.like);
    const auto rank = static_cast<std::size_t>(wanted.rank);
    result.bytes = like.dl.dtype.bits / 8;
    for (std::size_t i = 0; i < rank; ++i) {
      result.extents[i] = wanted.axis[i];
      if (wanted.argument[i] >= 0) {
        const View& source = *arguments.at(wanted.argument[i]);
        if (wanted.axis[i] >= source.dl.ndim)
          fail("a tensor has fewer dimensions than the op's schema");
        result.extents[i] = source.dl.shape[wanted.axis[i]];
      }
      result.bytes *= result.extents[i];
    }
    auto whole = result.extents;
    whole[0] *= wanted.parts;
    result.tensor = empty(whole.data(), rank, like.dtype, like);
    result.view = view_of(result.tensor.get());
  }

  const DLTensor* operand(const Binding& binding, const kiln_torch_operand& operand,
                          const Arguments& arguments, std::size_t i) {
    if (operand.argument >= 0) {
      const View* const view = arguments.at(operand.argument);
      return view != nullptr ? &view->dl : nullptr;
    }
    if (operand.result < 0 || !arguments.wants(operand.wanted)) return nullptr;
    Result& result = results_[static_cast<std::size_t>(operand.result)];
    DLTensor& part = parts_[i] = result.view.dl;
    part.data = static_cast<char*>(part.data) + operand.part * result.bytes;
    if (binding.results[static_cast<std::size_t>(operand.result)].parts > 1)
      part.shape = result.extents.data();
    return &part;
  }

  bool asked_for_ = false;
  std::vector<Result> results_;
  std::vector<DLTensor> parts_;
  std::vector<const DLTensor*> pointers_;
};

void run(const Binding& binding, const Tensors& tensors, const View& where) {
  kiln_call call{};
  call.struct_size = sizeof call;
  call.tensor_count = static_cast<std::uint32_t>(tensors.operands().size());
  call.tensors = tensors.operands().data();
  call.attribute_count = static_cast<std::uint32_t>(binding.attributes.size());
  call.attributes = binding.attributes.data();
  call.threads = binding.threads;
  const bool on_gpu = binding.device.device_type != kDLCPU;
  if (on_gpu) {
    check(functions.aoti_torch_get_current_cuda_stream(binding.device.device_id, &call.stream),
          "asking for the stream failed in PyTorch. ");
  } else {  // PyTorch's own operators would have as many as torch.set_num_threads says
    std::uint32_t threads = 0;
    check(functions.torch_get_num_threads(&threads), "asking for the threads failed in PyTorch. ");
    call.threads = call.threads == 0 ? threads : std::min(call.threads, threads);
  }
  kiln_error error;
  error.text[0] = '\0';
  if (loader.workspace_bytes(binding.op, &call, &call.workspace_bytes, &error) != 0)
    throw std::runtime_error(error.text);
  Owned scratch;  // PyTorch's allocator gives it to later work of this stream only
  if (call.workspace_bytes > 0 && on_gpu) {
    const auto bytes = static_cast<std::int64_t>(call.workspace_bytes);
    scratch = empty(&bytes, 1, functions.uint8, where);
    check(functions.aoti_torch_get_data_ptr(scratch.get(), &call.workspace),
          "reading a workspace failed in PyTorch. ");
  } else if (call.workspace_bytes > 0) {
    call.workspace = host_scratch(call.workspace_bytes);
  }
  if (loader.run(binding.op, &call, &error) != 0) throw std::runtime_error(error.text);
}

/// Whether it was computed; else `why`, for people.
bool compute(std::size_t number, Value* stack, std::array<char, kRoom>& why) noexcept {
  try {
    const Slot& slot = slots[number];
    Arguments arguments(slot.kinds, stack);
    arguments.read();
    const View& first = arguments.first();
    const Binding& binding = binding_of(number, arguments.key(), first.dl.device);
    Tensors tensors(binding, arguments);
    if (tensors.are_asked_for()) run(binding, tensors, first);
    tensors.give(slot.listed, stack);
    return true;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    why[text.copy(why.data(), why.size() - 1)] = '\0';
    return false;
  }
}

/// PyTorch calls a kernel without saying which operator it is for: each slot has one of its own. It
/// expects an exception of the C++ library that it has itself. This library may hold another one,
/// so that nothing of its own is on the stack when that is thrown.
template <std::size_t kSlot>
void kernel(Value* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
  std::array<char, kRoom> why;
  if (!compute(kSlot, stack, why)) functions.throw_runtime_error(why.data());
}

template <std::size_t... kEach>
constexpr std::array<Kernel, kSlots> kernels_of(std::index_sequence<kEach...> /*slots*/) {
  return {&kernel<kEach>...};
}
constexpr std::array<Kernel, kSlots> kKernels = kernels_of(std::make_index_sequence<kSlots>());

}  // namespace
}  // namespace kiln::torch

// ---- for Python ----

using namespace kiln::torch;

const char* kiln_torch_open(const kiln_torch_kiln* kiln) {
  loader = *kiln;
  if (const char* const missing = find_functions(); missing != nullptr) return missing;
  const std::array<const char*, 2> keys{"CPU", "CUDA"};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i == 1 && functions.aoti_torch_get_current_cuda_stream == nullptr) continue;
    void** const place = &libraries[i];
    if (functions.aoti_torch_library_init_impl("kiln", keys[i], "", 0, place) != 0) return keys[i];
  }
  return nullptr;
}

int32_t kiln_torch_register(const char* name, const char* kinds, int32_t listed) {
  const std::size_t number = used.fetch_add(1);
  if (number >= kSlots || std::strlen(kinds) > kArguments) return -1;
  slots[number].kinds = kinds;
  slots[number].listed = listed != 0;
  for (void* const library : libraries) {
    if (library == nullptr) continue;
    if (functions.torch_library_impl(library, name, kKernels[number], kAbi) != 0) return -1;
  }
  return static_cast<int32_t>(number);
}

void kiln_torch_bind(int32_t slot, const char* key, int32_t on_gpu, int32_t device,
                     const kiln_torch_binding* binding) {
  const kiln_torch_binding& c = *binding;
  auto made = std::make_unique<Binding>();
  made->key = key;
  made->device = {on_gpu != 0 ? kDLCUDA : kDLCPU, device};
  made->op = c.op;
  made->threads = c.threads;
  made->attributes.assign(c.attributes, c.attributes + c.attribute_count);
  made->operands.assign(c.operands, c.operands + c.operand_count);
  made->results.assign(c.results, c.results + c.result_count);
  for (kiln_attribute& each : made->attributes) {
    if (each.kind != KILN_ATTRIBUTE_STRING) continue;
    each.value.as_string = made->texts.emplace_back(each.value.as_string).c_str();
  }
  std::atomic<const Binding*>& front = slots[static_cast<std::size_t>(slot)].bindings;
  made->next = front.load();
  while (!front.compare_exchange_weak(made->next, made.get())) {
  }
  (void)made.release();  // the list's, for good
}
