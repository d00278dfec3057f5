// SPDX-License-Identifier: Apache-2.0
//
// Attention for LibTorch: a torch::nn::Module over the ops of attention. Gradients of forward's q,
// k and v come from the package's own backward; decode and append have none, and refuse a tensor
// that requires one, unless a NoGradGuard is there.
//
//   kiln::torch::Attention attention(kiln::torch::AttentionOptions().causal(true));
//   torch::Tensor out = attention->forward(q, k, v);   // q [..., T, HQ, D]; k, v [..., S, HK, D]
//   attention->append(k, v, slots, k_pages, v_pages);  // pages [P, PS, HK, D], compact
//   out = attention->decode(q, k_pages, v_pages, block_table, lengths);
//
// bfloat16, float16, on CPUs float32. q, k and v may be views of one projection: heads side by side
// are read where they are. kiln/torch.hpp says what memory and which stream it takes. Throws
// kiln::Error. Threads: as torch::nn::Linear.
#pragma once

#include <cstdint>
#include <initializer_list>
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

namespace detail {

struct AttentionSource : Kernels {
  explicit AttentionSource(AttentionOptions given)
      : Kernels(ops::attention::kPackage, given.request()), options(std::move(given)) {}
  std::int64_t left() const { return options.window() - 1; }
  std::int64_t right() const { return options.causal() ? 0 : -1; }
  AttentionOptions options;
};

/// [..., H, D] -> [T, H D]: a view where the rows have one distance.
inline ::torch::Tensor attention_rows(const ::torch::Tensor& tensor) {
  const ::torch::Tensor rows = tensor.reshape({-1, tensor.size(-2) * tensor.size(-1)});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

/// q [T, HQ, D], k and v [S, HK, D], the starts -> out. `ragged`: a caller gave the starts, and the
/// rows after the last sequence, which no kernel writes, are zeros, their gradients too.
class AttentionFunction : public ::torch::autograd::Function<AttentionFunction> {
 public:
  using Context = ::torch::autograd::AutogradContext;
  using Tensors = ::torch::autograd::variable_list;

  static ::torch::Tensor forward(Context* context, const ::torch::Tensor& q,
                                 const ::torch::Tensor& k, const ::torch::Tensor& v,
                                 const ::torch::Tensor& starts_q, const ::torch::Tensor& starts_k,
                                 bool ragged, const c10::intrusive_ptr<AttentionSource>& source) {
    const ::torch::Tensor rows[] = {attention_rows(q), attention_rows(k), attention_rows(v)};
    const ::torch::Tensor out = memory(q.sizes(), q, ragged);
    const ::torch::Tensor lse =
        ::torch::empty({q.size(1), q.size(0)}, out.options().dtype(::torch::kFloat32));
    source->run<ops::attention::Prefill>(q, {.q = view(rows[0]),
                                             .k = view(rows[1]),
                                             .v = view(rows[2]),
                                             .cu_seqlens_q = view(starts_q),
                                             .cu_seqlens_k = view(starts_k),
                                             .out = view(out),
                                             .lse = view(lse),
                                             .attributes = {.scale = source->options.scale(),
                                                            .window_left = source->left(),
                                                            .window_right = source->right()}});
    context->save_for_backward({q, k, v, out, lse, starts_q, starts_k});
    context->saved_data["source"] = c10::IValue::make_capsule(source);
    context->saved_data["ragged"] = ragged;
    return out;
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    refuse_second_derivative("attention");
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["source"].toCapsule();
    auto& source = static_cast<AttentionSource&>(*held);
    const ::torch::Tensor grad_out = grads[0].contiguous();
    const ::torch::Tensor rows[] = {attention_rows(saved[0]), attention_rows(saved[1]),
                                    attention_rows(saved[2])};
    const bool ragged = context->saved_data["ragged"].toBool();
    ::torch::Tensor found[3];
    for (int i = 0; i < 3; ++i) found[i] = memory(rows[i].sizes(), rows[i], ragged);
    source.run<ops::attention::Backward>(saved[0],
                                         {.grad_out = view(grad_out),
                                          .q = view(rows[0]),
                                          .k = view(rows[1]),
                                          .v = view(rows[2]),
                                          .out = view(saved[3]),
                                          .lse = view(saved[4]),
                                          .cu_seqlens_q = view(saved[5]),
                                          .cu_seqlens_k = view(saved[6]),
                                          .grad_q = view(found[0]),
                                          .grad_k = view(found[1]),
                                          .grad_v = view(found[2]),
                                          .attributes = {.scale = source.options.scale(),
                                                         .window_left = source.left(),
                                                         .window_right = source.right()}});
    return {found[0].view(saved[0].sizes()),
            found[1].view(saved[1].sizes()),
            found[2].view(saved[2].sizes()),
            {},
            {},
            {},
            {}};
  }

 private:
  static ::torch::Tensor memory(c10::IntArrayRef sizes, const ::torch::Tensor& like, bool ragged) {
    const auto options = like.options().requires_grad(false);
    return ragged ? ::torch::zeros(sizes, options) : ::torch::empty(sizes, options);
  }
};

}  // namespace detail

class AttentionImpl : public ::torch::nn::Module {
 public:
  explicit AttentionImpl(AttentionOptions options = {})
      : source_(c10::make_intrusive<detail::AttentionSource>(options)) {
    if (options.window() < 0 || (options.window() > 0 && !options.causal())) {
      throw Error(ErrorCode::kInvalidCall, "attention: a window of " +
                                               std::to_string(options.window()) +
                                               "; expected 1 or more keys, with causal(true)");
    }
  }

  /// Sequences of one length, or none of the two starts; with starts, int32 {0, …, T}, sequences
  /// one after the other: q [T, HQ, D]. Rows after the last sequence give zeros.
  ::torch::Tensor forward(const ::torch::Tensor& q, const ::torch::Tensor& k,
                          const ::torch::Tensor& v, const ::torch::Tensor& cu_seqlens_q = {},
                          const ::torch::Tensor& cu_seqlens_k = {}) {
    const auto leading = [](const ::torch::Tensor& t) { return t.sizes().slice(0, t.dim() - 3); };
    if (k.sizes() != v.sizes() || k.size(-1) != q.size(-1) ||
        (!cu_seqlens_q.defined() && leading(k) != leading(q))) {
      throw Error(ErrorCode::kInvalidCall,
                  "attention: q is " + words_of(q) + ", k " + words_of(k) + ", v " + words_of(v) +
                      "; expected k and v of one shape, with heads as long as those of q and, "
                      "without cu_seqlens, its leading extents");
    }
    return detail::AttentionFunction::apply(tokens_of(q), tokens_of(k), tokens_of(v),
                                            cu_seqlens_q.defined() ? cu_seqlens_q : starts_of(q),
                                            cu_seqlens_k.defined() ? cu_seqlens_k : starts_of(k),
                                            cu_seqlens_q.defined(), source_)
        .reshape(q.sizes());
  }

  /// q: [B, HQ, D] or [B, tokens, HQ, D], the last tokens of each sequence.
  ::torch::Tensor decode(const ::torch::Tensor& q, const ::torch::Tensor& k_pages,
                         const ::torch::Tensor& v_pages, const ::torch::Tensor& block_table,
                         const ::torch::Tensor& lengths) {
    refuse_gradients({q, k_pages, v_pages});
    const ::torch::Tensor rows = detail::attention_rows(q);
    ::torch::Tensor out = ::torch::empty(q.sizes(), q.options().requires_grad(false));
    source_->run<ops::attention::Decode>(
        q, {.q = view(rows),
            .k_pages = view(k_pages),
            .v_pages = view(v_pages),
            .block_table = view(block_table),
            .lengths = view(lengths),
            .out = view(out.view({-1, q.size(-2), q.size(-1)})),
            .attributes = {.scale = source_->options.scale(), .window_left = source_->left()}});
    return out;
  }

  /// k, v: [..., HK, D], to the rows of the pages that `slots` numbers, int32; below 0: nowhere.
  void append(const ::torch::Tensor& k, const ::torch::Tensor& v, const ::torch::Tensor& slots,
              const ::torch::Tensor& k_pages, const ::torch::Tensor& v_pages) {
    refuse_gradients({k, v, k_pages, v_pages});
    for (const auto& [rows, pages] : {std::pair(k, k_pages), std::pair(v, v_pages)}) {
      if (rows.size(-2) == pages.size(-2) && rows.size(-1) == pages.size(-1)) continue;
      throw Error(ErrorCode::kInvalidCall, "attention: rows to append are " + words_of(rows) +
                                               ", pages " + words_of(pages) +
                                               "; expected the heads of the pages");
    }
    const ::torch::Tensor rows[] = {detail::attention_rows(k), detail::attention_rows(v)};
    source_->run<ops::attention::Append>(k, {.k = view(rows[0]),
                                             .v = view(rows[1]),
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
                  "attention: a tensor requires a gradient, and decode and append have none. Call "
                  "them under a torch::NoGradGuard");
    }
  }
  static ::torch::Tensor tokens_of(const ::torch::Tensor& tensor) {
    return tensor.reshape({-1, tensor.size(-2), tensor.size(-1)});
  }
  static ::torch::Tensor starts_of(const ::torch::Tensor& tensor) {
    const std::int64_t tokens = tensor.size(-3);
    const std::int64_t sequences =
        c10::multiply_integers(tensor.sizes().slice(0, tensor.dim() - 3));
    return ::torch::arange(sequences + 1, tensor.options().dtype(::torch::kInt32)) * tokens;
  }
  c10::intrusive_ptr<detail::AttentionSource> source_;
};
TORCH_MODULE(Attention);

}  // namespace kiln::torch
