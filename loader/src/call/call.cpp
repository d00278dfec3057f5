// SPDX-License-Identifier: Apache-2.0
//
// Call: one operation of a loaded package over the C ABI. The last stage: everything is on the
// stack and nothing is allocated, so that a call can be captured and costs well under a
// microsecond.
#include <algorithm>
#include <array>
#include <vector>

#include "base/signals.hpp"
#include "call/table.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"

namespace kiln {
namespace {

/// Throws what the package says went wrong.
template <class Function>
void call_package(const Function& function) {
  const NoCancel whole;  // a package is C: nothing may unwind through it
  kiln_error error;
  error.text[0] = '\0';
  const std::int32_t status = function(&error);
  if (status == KILN_OK) return;
  const ErrorCode code = failure_of(status, error);
  throw Error(code, error.text);
}

/// So many values in a row: on the stack, unless a call has more of them than any op should.
template <class Value, std::size_t kUsual>
class Row {
 public:
  explicit Row(std::size_t count) : more_(count > kUsual ? count : 0) {}
  Value* data() { return more_.empty() ? usual_.data() : more_.data(); }

 private:
  std::array<Value, kUsual> usual_;
  std::vector<Value> more_;
};

/// The C form of the arguments; points into the spans it was made from, and into itself.
class Arguments {
 public:
  /// `tensors`: Tensor or const Tensor*.
  template <class Each>
  Arguments(std::span<const Each> tensors, std::span<const Attribute> attributes, int threads)
      : tensors_(tensors.size()), pointers_(tensors.size()), attributes_(attributes.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& given = tensor_in(tensors[i]);
      pointers_.data()[i] = nullptr;
      if (given.empty()) continue;
      DLTensor& tensor = tensors_.data()[i] = given.dl();
      pointers_.data()[i] = &tensor;
    }
    std::transform(attributes.begin(), attributes.end(), attributes_.data(),
                   [](const Attribute& each) { return each.c(); });
    call_.struct_size = sizeof(kiln_call);
    call_.tensor_count = static_cast<std::uint32_t>(tensors.size());
    call_.tensors = pointers_.data();
    call_.attribute_count = static_cast<std::uint32_t>(attributes.size());
    call_.threads = static_cast<std::uint32_t>(threads);
    call_.attributes = attributes_.data();
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  kiln_call& call() { return call_; }

 private:
  static const Tensor& tensor_in(const Tensor& tensor) { return tensor; }
  static const Tensor& tensor_in(const Tensor* tensor) { return *tensor; }

  Row<DLTensor, 32> tensors_;
  Row<const DLTensor*, 32> pointers_;
  Row<kiln_attribute, 16> attributes_;
  kiln_call call_{};
};

std::size_t workspace_bytes_of(const kiln_op& op, Arguments arguments) {
  std::size_t bytes = 0;
  call_package(
      [&](kiln_error* error) { return op.workspace_bytes(&arguments.call(), &bytes, error); });
  return bytes;
}

void run_op(const kiln_op& op, Arguments arguments, Workspace workspace, Stream stream) {
  kiln_call& call = arguments.call();
  call.workspace = workspace.data;
  call.workspace_bytes = workspace.bytes;
  call.stream = stream.handle();
  call_package([&](kiln_error* error) { return op.run(&call, error); });
}

}  // namespace

std::size_t Op::workspace_bytes(std::span<const Tensor> tensors,
                                std::span<const Attribute> attributes) const {
  return workspace_bytes_of(*op_, {tensors, attributes, threads_});
}

std::size_t Op::workspace_bytes(std::span<const Tensor* const> tensors,
                                std::span<const Attribute> attributes) const {
  return workspace_bytes_of(*op_, {tensors, attributes, threads_});
}

void Op::run(std::span<const Tensor> tensors, std::span<const Attribute> attributes,
             Workspace workspace, Stream stream) const {
  run_op(*op_, {tensors, attributes, threads_}, workspace, stream);
}

void Op::run(std::span<const Tensor* const> tensors, std::span<const Attribute> attributes,
             Workspace workspace, Stream stream) const {
  run_op(*op_, {tensors, attributes, threads_}, workspace, stream);
}

}  // namespace kiln
