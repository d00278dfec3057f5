// SPDX-License-Identifier: Apache-2.0
//
// Attention for LibTorch: a torch::nn::Module over the ops of attention. It has no gradient: a
// tensor that requires one is refused, unless a NoGradGuard is there.
//
//   kiln::torch::Attention attention(kiln::torch::AttentionOptions().causal(true));
//   torch::Tensor out = attention->forward(q, k, v);       // q [..., T, HQ, D], k, v [..., S, HK,
//   D] attention->append(k, v, slots, k_pages, v_pages);      // pages [P, PS, HK, D] out =
//   attention->decode(q, k_pages, v_pages, block_table, lengths);
//
// bfloat16, float16, on CPUs float32. q, k and v may be views of one projection: heads side by side
// are read where they are. kiln/torch.hpp says what memory and which stream it takes. Throws
// kiln::Error. Threads: as torch::nn::Linear.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kiln/ops/attention.hpp"
#include "kiln/torch.hpp"

namespace kiln::torch {

class AttentionOptions {
 public:
  /// A query sees no key after its own; the last query stands at the last key.
  TORCH_ARG(bool, causal) = false;
  /// The most keys that a query sees, its own counted; 0: all. Needs causal.
  TORCH_ARG(std::int64_t, window) = 0;
  /// 0: 1 / sqrt(D).
  TORCH_ARG(double, scale) = 0;
  /// Which kernel; its device is that of the tensors.
  TORCH_ARG(Request, request) = {.version = ops::attention::kVersion};
};

class AttentionImpl : public ::torch::nn::Module {
 public:
  explicit AttentionImpl(AttentionOptions options = {})
      : options_(std::move(options)),
        kernels_(std::string(ops::attention::kPackage), options_.request()) {
    if (options_.window() < 0 || (options_.window() > 0 && !options_.causal())) {
      throw Error(ErrorCode::kInvalidCall, "attention: a window of " +
                                               std::to_string(options_.window()) +
                                               "; expected 1 or more keys, with causal(true)");
    }
  }

  /// Sequences of one length, or none of the two starts; with starts, int32 {0, …, T}, sequences
  /// one after the other: q [T, HQ, D].
  ::torch::Tensor forward(const ::torch::Tensor& q, const ::torch::Tensor& k,
                          const ::torch::Tensor& v, const ::torch::Tensor& cu_seqlens_q = {},
                          const ::torch::Tensor& cu_seqlens_k = {}) {
    refuse_gradients({q, k, v});
    const ::torch::Tensor rows[] = {rows_of(q), rows_of(k), rows_of(v)};
    const ::torch::Tensor starts_q = cu_seqlens_q.defined() ? cu_seqlens_q : starts_of(q);
    const ::torch::Tensor starts_k = cu_seqlens_k.defined() ? cu_seqlens_k : starts_of(k);
    ::torch::Tensor out = ::torch::empty(q.sizes(), q.options().requires_grad(false));
    run<ops::attention::Prefill>(q, {.q = rows_view(rows[0]),
                                     .k = rows_view(rows[1]),
                                     .v = rows_view(rows[2]),
                                     .cu_seqlens_q = view(starts_q),
                                     .cu_seqlens_k = view(starts_k),
                                     .out = view(out.view({-1, q.size(-2), q.size(-1)})),
                                     .attributes = {.scale = options_.scale(),
                                                    .window_left = options_.window() - 1,
                                                    .window_right = options_.causal() ? 0 : -1}});
    return out;
  }

  /// q: [B, HQ, D] or [B, tokens, HQ, D], the last tokens of each sequence.
  ::torch::Tensor decode(const ::torch::Tensor& q, const ::torch::Tensor& k_pages,
                         const ::torch::Tensor& v_pages, const ::torch::Tensor& block_table,
                         const ::torch::Tensor& lengths) {
    refuse_gradients({q, k_pages, v_pages});
    const ::torch::Tensor rows = rows_of(q);
    ::torch::Tensor out = ::torch::empty(q.sizes(), q.options().requires_grad(false));
    run<ops::attention::Decode>(
        q, {.q = rows_view(rows),
            .k_pages = view(k_pages),
            .v_pages = view(v_pages),
            .block_table = rows_view(block_table),
            .lengths = view(lengths),
            .out = view(out.view({-1, q.size(-2), q.size(-1)})),
            .attributes = {.scale = options_.scale(), .window_left = options_.window() - 1}});
    return out;
  }

  /// k, v: [..., HK, D], to the rows of the pages that `slots` numbers, int32; below 0: nowhere.
  void append(const ::torch::Tensor& k, const ::torch::Tensor& v, const ::torch::Tensor& slots,
              const ::torch::Tensor& k_pages, const ::torch::Tensor& v_pages) {
    refuse_gradients({k, v, k_pages, v_pages});
    const ::torch::Tensor rows[] = {rows_of(k), rows_of(v)};
    run<ops::attention::Append>(k, {.k = rows_view(rows[0]),
                                    .v = rows_view(rows[1]),
                                    .slots = view(slots),
                                    .k_pages = view(k_pages),
                                    .v_pages = view(v_pages)});
  }

 private:
  static void refuse_gradients(std::initializer_list<::torch::Tensor> tensors) {
    if (!::torch::GradMode::is_enabled()) return;
    for (const ::torch::Tensor& tensor : tensors) {
      if (!tensor.requires_grad()) continue;
      throw Error(ErrorCode::kInvalidCall,
                  "attention: a tensor requires a gradient, and the package has no backward. Call "
                  "it under a torch::NoGradGuard");
    }
  }
  /// [..., H, D] -> [T, H D]: a view where the rows have one distance.
  static ::torch::Tensor rows_of(const ::torch::Tensor& tensor) {
    const ::torch::Tensor rows = tensor.reshape({-1, tensor.size(-2) * tensor.size(-1)});
    return rows.stride(1) == 1 ? rows : rows.contiguous();
  }
  static Tensor rows_view(const ::torch::Tensor& rows) {
    DLTensor dl = view(rows).dl();
    dl.strides = const_cast<std::int64_t*>(rows.strides().data());  // DLPack has no const
    return Tensor(dl);
  }
  static ::torch::Tensor starts_of(const ::torch::Tensor& tensor) {
    const std::int64_t tokens = tensor.size(-3);
    const std::int64_t sequences =
        c10::multiply_integers(tensor.sizes().slice(0, tensor.dim() - 3));
    return ::torch::arange(sequences + 1, tensor.options().dtype(::torch::kInt32)) * tokens;
  }
  template <class Op>
  void run(const ::torch::Tensor& like, const Op& arguments) {
    const TypedOp<Op> op = kernels_.of(like).template op<Op>();
    const Scratch scratch(op.workspace_bytes(arguments), like);
    op.run(arguments, scratch.workspace, current_stream(like));
  }

  AttentionOptions options_;
  Kernels kernels_;
};
TORCH_MODULE(Attention);

}  // namespace kiln::torch
