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
    // A lane writes 16 aligned bytes: a row that begins between two such places has one more.
    const bool aligned = to_columns % 8 == 0 && is_aligned(to.data, 16);
    const int64_t parts_of_row = tiles_of(to_columns + (aligned ? 0 : 7), kPaddedColumns);
    arguments_.copies[arguments_.count++] = {.from = from.data,
                                             .to = to.data,
                                             .from_rows = rows(from),
                                             .from_columns = from_columns,
                                             .to_rows = rows(to),
                                             .to_columns = to_columns,
                                             .first_part = parts_,
                                             .parts_of_row = parts_of_row};
    int64_t parts = 0;
    if (__builtin_mul_overflow(rows(to), parts_of_row, &parts) ||
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
  PaddedArguments arguments_ = {};
  int64_t parts_ = 0;
};

enum class Kind {
  kTokens,  // [M, D] or [M, H]
  kWeight,  // [H, D] or [D, H]
  kBias,    // [D] or [H]
};

constexpr size_t kAlignment = 256;
// For questions about a workspace that is not there yet: which kernels run, and so what they need,
// depends on the alignment of tensors, whatever their places.
alignas(kAlignment) char somewhere[kAlignment];

// A call, its copy with padded tensors in the workspace, and what is copied before and after it.
template <class Call>
class Padded {
 public:
  using Member = sdk::Tensor Call::*;

  // `workspace`: null where only its bytes are asked for.
  Padded(const Call& given, void* workspace)
      : given_(given), call_(given), workspace_(static_cast<char*>(workspace)) {
    call_.D = padded(given.D);
    call_.H = padded(given.H);
  }

  // What is not `needed` gets its shape and no memory.
  void read(Kind kind, Member member, bool needed = true) {
    if (!pad(kind, member)) return;
    if (needed) {
      place(kind, member);
      before_.add(given_.*member, call_.*member, dimensions_of(kind));
    }
  }
  void write(Kind kind, Member member) {
    if (!pad(kind, member)) return;
    place(kind, member);
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
  static int dimensions_of(Kind kind) { return kind == Kind::kBias ? 1 : 2; }
  char* at(size_t offset) const { return workspace_ == nullptr ? somewhere : workspace_ + offset; }

  // False: it is not there.
  bool pad(Kind kind, Member member) {
    sdk::Tensor& tensor = call_.*member;
    if (!tensor.present) return false;
    const int last = dimensions_of(kind) - 1;
    if (kind == Kind::kWeight) tensor.shape[0] = padded(tensor.shape[0]);
    tensor.shape[last] = padded(tensor.shape[last]);
    if (last == 1) tensor.stride[0] = tensor.shape[1];
    tensor.data = at(0);
    return true;
  }
  void place(Kind kind, Member member) {
    sdk::Tensor& tensor = call_.*member;
    tensor.data = at(bytes_);
    auto bytes = static_cast<size_t>(bytes_of(element_of(tensor.dtype)));
    for (int i = 0; i < dimensions_of(kind); ++i) {
      fits_ = fits_ && !__builtin_mul_overflow(bytes, static_cast<size_t>(tensor.shape[i]), &bytes);
    }
    fits_ = fits_ && !__builtin_add_overflow(bytes, bytes_ + kAlignment - 1, &bytes);
    if (fits_) bytes_ = bytes / kAlignment * kAlignment;
  }

  const Call& given_;
  Call call_;
  char* const workspace_;
  Copies before_, after_;
  size_t bytes_ = 0;
  bool fits_ = true;
};

Padded<MlpCall> padded_of(const MlpCall& call, void* workspace) {
  Padded<MlpCall> result(call, workspace);
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

Padded<MlpBackwardCall> padded_of(const MlpBackwardCall& call, void* workspace) {
  using Call = MlpBackwardCall;
  // As plan_backward() has it: what no step reads is not copied.
  const bool of_weights = call.grad_gate.present || call.grad_up.present;
  const bool of_hidden =
      call.grad_x.present || of_weights || call.grad_gate_bias.present || call.grad_up_bias.present;
  const bool of_products = of_hidden || call.grad_down.present;
  const bool again = of_products && !call.gate_out.present;
  Padded<Call> result(call, workspace);
  result.read(Kind::kTokens, &Call::grad_y,
              of_hidden || call.grad_down.present || call.grad_down_bias.present);
  result.read(Kind::kTokens, &Call::x, of_weights || again);
  result.read(Kind::kWeight, &Call::gate, call.grad_x.present || again);
  result.read(Kind::kWeight, &Call::up, call.grad_x.present || again);
  result.read(Kind::kWeight, &Call::down, of_hidden);
  result.read(Kind::kBias, &Call::gate_bias, again);
  result.read(Kind::kBias, &Call::up_bias, again);
  result.read(Kind::kTokens, &Call::gate_out, of_products);
  result.read(Kind::kTokens, &Call::up_out, of_products);
  result.write(Kind::kTokens, &Call::grad_x);
  // up's before gate's: behind gate's it would be computed with it, and gate's bits would depend on
  // whether up's is asked for.
  result.write(Kind::kWeight, &Call::grad_up);
  result.write(Kind::kWeight, &Call::grad_gate);
  result.write(Kind::kWeight, &Call::grad_down);
  result.write(Kind::kBias, &Call::grad_gate_bias);
  result.write(Kind::kBias, &Call::grad_up_bias);
  result.write(Kind::kBias, &Call::grad_down_bias);
  return result;
}

}  // namespace

size_t padded_workspace_bytes(const MlpCall& call) {
  return padded_of(call, nullptr).workspace_bytes(mlp_workspace_bytes);
}
size_t padded_workspace_bytes(const MlpBackwardCall& call) {
  return padded_of(call, nullptr).workspace_bytes(mlp_backward_workspace_bytes);
}

int32_t run_padded(const sdk::OnDevice& gpu, const MlpCall& call, kiln_error* error) {
  return padded_of(call, call.workspace).run(gpu, call.op, mlp, error);
}
int32_t run_padded(const sdk::OnDevice& gpu, const MlpBackwardCall& call, kiln_error* error) {
  return padded_of(call, call.workspace).run(gpu, "backward", mlp_backward, error);
}

}  // namespace kiln::package
