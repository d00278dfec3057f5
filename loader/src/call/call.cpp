// SPDX-License-Identifier: Apache-2.0
//
// Call: one operation of a loaded package over the C ABI. The last stage: everything is on the
// stack and nothing is allocated, so that a call can be captured and costs well under a
// microsecond.
#include <array>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/kernel.hpp"

namespace kiln {
namespace {

constexpr std::size_t kStackTensors = 32;
constexpr std::size_t kStackAttributes = 16;

[[noreturn]] void throw_status(std::int32_t status, kiln_error& error) {
  error.text[sizeof(error.text) - 1] = '\0';  // a package may not have
  const bool device = status == KILN_DEVICE_ERROR;
  throw Error(device ? ErrorCode::kDevice : ErrorCode::kInvalidCall,
              error.text[0] != '\0' ? error.text
                                    : "the package failed with status " + std::to_string(status) +
                                          " and gave no text");
}

/// The C form of the arguments; points into the spans it was made from, and into itself.
class Arguments {
 public:
  Arguments(std::span<const Tensor> tensors, std::span<const Attribute> attributes) {
    if (tensors.size() > kStackTensors) {
      more_tensors_.resize(tensors.size());
      more_pointers_.resize(tensors.size());
    }
    DLTensor* const values = more_tensors_.empty() ? tensors_.data() : more_tensors_.data();
    const DLTensor** const pointers =
        more_pointers_.empty() ? pointers_.data() : more_pointers_.data();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      values[i] = tensors[i].dl();
      pointers[i] = tensors[i].empty() ? nullptr : &values[i];
    }
    if (attributes.size() > kStackAttributes) more_attributes_.resize(attributes.size());
    kiln_attribute* const words =
        more_attributes_.empty() ? attributes_.data() : more_attributes_.data();
    for (std::size_t i = 0; i < attributes.size(); ++i) words[i] = attributes[i].c();

    call_.struct_size = sizeof(kiln_call);
    call_.tensor_count = static_cast<std::uint32_t>(tensors.size());
    call_.tensors = pointers;
    call_.attribute_count = static_cast<std::uint32_t>(attributes.size());
    call_.attributes = words;
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  kiln_call& call() { return call_; }

 private:
  std::array<DLTensor, kStackTensors> tensors_;
  std::array<const DLTensor*, kStackTensors> pointers_;
  std::array<kiln_attribute, kStackAttributes> attributes_;
  std::vector<DLTensor> more_tensors_;
  std::vector<const DLTensor*> more_pointers_;
  std::vector<kiln_attribute> more_attributes_;
  kiln_call call_{};
};

}  // namespace

Attribute::Attribute(std::int64_t value) {
  value_.kind = KILN_ATTRIBUTE_INT;
  value_.value.as_int = value;
}

Attribute::Attribute(double value) {
  value_.kind = KILN_ATTRIBUTE_FLOAT;
  value_.value.as_float = value;
}

Attribute::Attribute(const char* value) {
  value_.kind = KILN_ATTRIBUTE_STRING;
  value_.value.as_string = value;
}

std::string_view Op::name() const {
  return op_->name;
}

std::string_view Op::schema() const {
  return op_->schema;
}

std::size_t Op::workspace_bytes(std::span<const Tensor> tensors,
                                std::span<const Attribute> attributes) const {
  Arguments arguments(tensors, attributes);
  kiln_error error;
  error.text[0] = '\0';
  std::size_t bytes = 0;
  const std::int32_t status = op_->workspace_bytes(&arguments.call(), &bytes, &error);
  if (status != KILN_OK) throw_status(status, error);
  return bytes;
}

void Op::run(std::span<const Tensor> tensors, std::span<const Attribute> attributes,
             Workspace workspace, void* stream) const {
  Arguments arguments(tensors, attributes);
  kiln_call& call = arguments.call();
  call.workspace = workspace.data;
  call.workspace_bytes = workspace.bytes;
  call.stream = stream;
  kiln_error error;
  error.text[0] = '\0';
  const std::int32_t status = op_->run(&call, &error);
  if (status != KILN_OK) throw_status(status, error);
}

}  // namespace kiln
