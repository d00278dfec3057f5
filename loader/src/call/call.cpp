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
  Arguments(std::span<const Tensor> tensors, std::span<const Attribute> attributes)
      : tensors_(tensors.size()), pointers_(tensors.size()), attributes_(attributes.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      DLTensor& tensor = tensors_.data()[i] = tensors[i].dl();
      pointers_.data()[i] = tensors[i].empty() ? nullptr : &tensor;
    }
    std::transform(attributes.begin(), attributes.end(), attributes_.data(),
                   [](const Attribute& each) { return each.c(); });
    call_.struct_size = sizeof(kiln_call);
    call_.tensor_count = static_cast<std::uint32_t>(tensors.size());
    call_.tensors = pointers_.data();
    call_.attribute_count = static_cast<std::uint32_t>(attributes.size());
    call_.attributes = attributes_.data();
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  kiln_call& call() { return call_; }

 private:
  Row<DLTensor, 32> tensors_;
  Row<const DLTensor*, 32> pointers_;
  Row<kiln_attribute, 16> attributes_;
  kiln_call call_{};
};

}  // namespace

std::size_t Op::workspace_bytes(std::span<const Tensor> tensors,
                                std::span<const Attribute> attributes) const {
  Arguments arguments(tensors, attributes);
  std::size_t bytes = 0;
  call_package(
      [&](kiln_error* error) { return op_->workspace_bytes(&arguments.call(), &bytes, error); });
  return bytes;
}

void Op::run(std::span<const Tensor> tensors, std::span<const Attribute> attributes,
             Workspace workspace, void* stream) const {
  Arguments arguments(tensors, attributes);
  kiln_call& call = arguments.call();
  call.workspace = workspace.data;
  call.workspace_bytes = workspace.bytes;
  call.stream = stream;
  call_package([&](kiln_error* error) { return op_->run(&call, error); });
}

}  // namespace kiln
