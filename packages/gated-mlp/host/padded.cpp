// SPDX-License-Identifier: Apache-2.0
//
#include "host/padded.hpp"

#include "host/gemm.hpp"

namespace kiln::package {
namespace {

using gated_mlp::kHalfBytes;
using gated_mlp::kPaddedColumns;
using gated_mlp::kPaddedThreads;
using gated_mlp::PaddedArguments;
using gated_mlp::PaddedCopy;
using gated_mlp::tiles_of;

constexpr int64_t padded(int64_t extent) {
  return tiles_of(extent, 8) * 8;
}

// One launch of copies, as they are added.
class Copies {
 public:
  void add(const sdk::Tensor& from, const sdk::Tensor& to, int dimensions) {
    const int64_t halves = bytes_of(element_of(from.dtype)) / kHalfBytes;  // of an element
    const auto rows = [&](const sdk::Tensor& tensor) {
      return dimensions == 1 ? 1 : tensor.shape[0];
    };
    const int64_t from_columns = halves * from.shape[dimensions - 1];
    const int64_t to_columns = halves * to.shape[dimensions - 1];
    arguments_.copies[arguments_.count++] = {.from = from.data,
                                             .to = to.data,
                                             .from_rows = rows(from),
                                             .from_columns = from_columns,
                                             .to_rows = rows(to),
                                             .to_columns = to_columns,
                                             .first_part = parts_,
                                             .paired_loads = is_paired(from.data, from_columns),
                                             .paired_stores = is_paired(to.data, to_columns)};
    int64_t parts = 0;
    if (__builtin_mul_overflow(rows(to), tiles_of(to_columns, kPaddedColumns), &parts) ||
        __builtin_add_overflow(parts_, parts, &parts_)) {
      parts_ = INT64_MAX;
    }
  }

  int32_t launch(const sdk::OnDevice& gpu, const char* op, void* stream, kiln_error* error) {
    const int64_t ctas = tiles_of(parts_, kPaddedThreads / 32);
    if (ctas == 0) return KILN_OK;
    if (ctas > INT32_MAX) {
      return sdk::fail(error, KILN_UNSUPPORTED,
                       "%s: copies with multiples of 8 columns need more CTAs than a grid has; "
                       "split x into several calls",
                       op);
    }
    void* pointers[] = {&arguments_};
    return gpu.launch(gated_mlp::kPaddedKernel, {static_cast<uint32_t>(ctas)}, kPaddedThreads,
                      stream, pointers, error);
  }

 private:
  static int is_paired(const void* data, int64_t columns) {
    return columns % 2 == 0 && is_aligned(data, 4) ? 1 : 0;
  }

  PaddedArguments arguments_ = {};
  int64_t parts_ = 0;
};

enum class Kind {
  kTokens,  // [M, D] or [M, H]
  kWeight,  // [H, D] or [D, H]
  kBias,    // [D] or [H]
};

// A call, its copy with padded tensors in the workspace, and what is copied before and after it.
template <class Call>
class Padded {
 public:
  using Member = sdk::Tensor Call::*;

  explicit Padded(const Call& given) : given_(given), call_(given) {
    call_.D = padded(given.D);
    call_.H = padded(given.H);
  }

  void read(Kind kind, Member member) {
    if (!place(kind, member)) return;
    before_.add(given_.*member, call_.*member, dimensions_of(kind));
  }
  void write(Kind kind, Member member) {
    if (!place(kind, member)) return;
    if (adds(given_.*member)) before_.add(given_.*member, call_.*member, dimensions_of(kind));
    after_.add(call_.*member, given_.*member, dimensions_of(kind));
  }
  // At the place of one that is written, whose copy may stand there.
  void read_at(Kind kind, Member member, Member place) {
    if (!(given_.*member).present) return;
    call_.*member = call_.*place;
    before_.add(given_.*member, call_.*member, dimensions_of(kind));
  }

  // SIZE_MAX: more than a size_t holds.
  size_t workspace_bytes(size_t (*of_padded)(const Call&)) const {
    size_t bytes = 0;
    return !fits_ || __builtin_add_overflow(bytes_, of_padded(call_), &bytes) ? SIZE_MAX : bytes;
  }

  int32_t run(const sdk::OnDevice& gpu, const char* op,
              int32_t (*run_one)(const Call&, kiln_error*), kiln_error* error) {
    call_.workspace = at(bytes_);
    int32_t status = before_.launch(gpu, op, call_.stream, error);
    if (status == KILN_OK) status = run_one(call_, error);
    return status == KILN_OK ? after_.launch(gpu, op, call_.stream, error) : status;
  }

 private:
  static constexpr size_t kAlignment = 256;

  static int dimensions_of(Kind kind) { return kind == Kind::kBias ? 1 : 2; }
  // Where there is no workspace yet, places of the same alignment: which kernels run, and so what
  // they need, depends on that.
  char* at(size_t offset) const {
    return given_.workspace != nullptr ? static_cast<char*>(given_.workspace) + offset
                                       : reinterpret_cast<char*>(kAlignment + offset);
  }

  // False: it is not there.
  bool place(Kind kind, Member member) {
    sdk::Tensor& tensor = call_.*member;
    if (!tensor.present) return false;
    const int last = dimensions_of(kind) - 1;
    if (kind == Kind::kWeight) tensor.shape[0] = padded(tensor.shape[0]);
    tensor.shape[last] = padded(tensor.shape[last]);
    if (last == 1) tensor.stride[0] = tensor.shape[1];
    tensor.data = at(bytes_);
    auto bytes = static_cast<size_t>(bytes_of(element_of(tensor.dtype)));
    for (int i = 0; i <= last; ++i) {
      fits_ = fits_ && !__builtin_mul_overflow(bytes, static_cast<size_t>(tensor.shape[i]), &bytes);
    }
    fits_ = fits_ && !__builtin_add_overflow(bytes, bytes_ + kAlignment - 1, &bytes);
    if (fits_) bytes_ = bytes / kAlignment * kAlignment;
    return true;
  }

  const Call& given_;
  Call call_;
  Copies before_, after_;
  size_t bytes_ = 0;
  bool fits_ = true;
};

Padded<MlpCall> padded_of(const MlpCall& call) {
  Padded<MlpCall> result(call);
  result.read(Kind::kTokens, &MlpCall::x);
  result.read(Kind::kWeight, &MlpCall::gate);
  result.read(Kind::kWeight, &MlpCall::up);
  result.read(Kind::kWeight, &MlpCall::down);
  result.read(Kind::kBias, &MlpCall::gate_bias);
  result.read(Kind::kBias, &MlpCall::up_bias);
  result.read(Kind::kBias, &MlpCall::down_bias);
  result.write(Kind::kTokens, &MlpCall::y);
  result.read_at(Kind::kTokens, &MlpCall::residual, &MlpCall::y);
  result.write(Kind::kTokens, &MlpCall::gate_out);
  result.write(Kind::kTokens, &MlpCall::up_out);
  return result;
}

Padded<MlpBackwardCall> padded_of(const MlpBackwardCall& call) {
  using Call = MlpBackwardCall;
  Padded<Call> result(call);
  result.read(Kind::kTokens, &Call::grad_y);
  result.read(Kind::kTokens, &Call::x);
  result.read(Kind::kWeight, &Call::gate);
  result.read(Kind::kWeight, &Call::up);
  result.read(Kind::kWeight, &Call::down);
  result.read(Kind::kBias, &Call::gate_bias);
  result.read(Kind::kBias, &Call::up_bias);
  result.read(Kind::kTokens, &Call::gate_out);
  result.read(Kind::kTokens, &Call::up_out);
  result.write(Kind::kTokens, &Call::grad_x);
  result.write(Kind::kWeight, &Call::grad_gate);
  result.write(Kind::kWeight, &Call::grad_up);
  result.write(Kind::kWeight, &Call::grad_down);
  result.write(Kind::kBias, &Call::grad_gate_bias);
  result.write(Kind::kBias, &Call::grad_up_bias);
  result.write(Kind::kBias, &Call::grad_down_bias);
  return result;
}

}  // namespace

size_t padded_workspace_bytes(const MlpCall& call) {
  return padded_of(call).workspace_bytes(mlp_workspace_bytes);
}
size_t padded_workspace_bytes(const MlpBackwardCall& call) {
  return padded_of(call).workspace_bytes(mlp_backward_workspace_bytes);
}

int32_t run_padded(const sdk::OnDevice& gpu, const MlpCall& call, kiln_error* error) {
  return padded_of(call).run(gpu, call.op, mlp, error);
}
int32_t run_padded(const sdk::OnDevice& gpu, const MlpBackwardCall& call, kiln_error* error) {
  return padded_of(call).run(gpu, "backward", mlp_backward, error);
}

}  // namespace kiln::package
