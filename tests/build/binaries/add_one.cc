// SPDX-License-Identifier: Apache-2.0
//
// A library of tvm-ffi in the manner of its C++ headers: typed functions over views of tensors, which
// raise errors as exceptions. Knows nothing of Kiln.
#include <tvm/ffi/tvm_ffi.h>

namespace {

namespace ffi = tvm::ffi;

void add(ffi::TensorView y, ffi::TensorView x, ffi::Optional<ffi::TensorView> bias, double amount,
         int64_t times, ffi::String mode) {
  if (mode == "refuse") TVM_FFI_THROW(ValueError) << "amount " << amount << " is refused";
  if (mode == "break") TVM_FFI_THROW(RuntimeError) << "broken on purpose";
  if (mode == "missing") TVM_FFI_THROW(NotImplementedError) << "not written yet";
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t i = 0; i < x.size(1); ++i) {
      float value = from[row * x.stride(0) + i] + static_cast<float>(amount * times);
      if (bias.has_value()) value += static_cast<const float*>(bias.value().data_ptr())[i];
      to[row * y.stride(0) + i] = value;
    }
  }
}

void add_one(ffi::TensorView x, ffi::TensorView y) {
  for (int64_t i = 0; i < x.size(0); ++i) {
    static_cast<float*>(y.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + 1;
  }
}

// What an op of Kiln does not do.
ffi::String text(ffi::TensorView, ffi::TensorView) { return "a text that is too long to be small"; }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(AddRows, add);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one_cpu, add_one);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(text, text);
