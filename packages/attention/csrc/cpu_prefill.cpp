// SPDX-License-Identifier: Apache-2.0
//
// Prefill on a CPU: an item is at most kMostRows query rows, of tokens and of heads that share a
// head of keys.
#include "cpu.hpp"

namespace kiln::package {
namespace {

using attention::Rows;

template <class T>
struct Prefill {
  const PrefillArguments& call;
  const Heads& heads;
  const Sequences& sequences;
  float scale = scale_of(call.scale, call.D);

  void operator()(int64_t item) const {
    const int64_t group_parts = heads.parts();
    const int64_t part = item % group_parts;
    const int64_t head = item / group_parts % heads.keys;
    const int64_t block = item / group_parts / heads.keys;
    const int32_t* starts = sequences.q_starts;
    const int64_t b = sequences.of_block(starts, block, heads.tokens);
    const int64_t queries = sequences.queries(b);
    const int64_t begin = (block - Sequences::first_block(starts, b, heads.tokens)) * heads.tokens;
    if (begin < queries) compute(b, head, part, begin, smaller(begin + heads.tokens, queries));
  }

  void compute(int64_t b, int64_t head, int64_t part, int64_t begin, int64_t end) const {
    const int64_t keys = sequences.keys(b);
    const int64_t behind = keys - sequences.queries(b);
    const int64_t q_first = sequences.q_starts[b];
    const int64_t k_first = sequences.k_starts[b];
    const int64_t first = head * heads.group + part * heads.at_once;
    const int64_t last = smaller(first + heads.at_once, (head + 1) * heads.group);
    Rows rows;
    rows.columns = static_cast<int>(call.D);
    for (int64_t i = begin; i < end; ++i) {
      const Span span = span_of(i + behind, keys, call.window_left, call.window_right);
      const T* q = static_cast<const T*>(call.q.data) + (q_first + i) * call.q.stride[0];
      for (int64_t h = first; h < last; ++h) rows.add(q + h * call.D, scale, span);
    }
    const auto row = [&](const sdk::Tensor& tensor) {
      return static_cast<const T*>(tensor.data) + k_first * tensor.stride[0] + head * call.D;
    };
    attention::attend(
        rows, row(call.k), row(call.v), rows.all(), [&](int64_t n) { return n * call.k.stride[0]; },
        [&](int64_t n) { return n * call.v.stride[0]; });
    int r = 0;
    for (int64_t i = q_first + begin; i < q_first + end; ++i) {
      for (int64_t h = first; h < last; ++h, ++r) {
        auto* out = static_cast<T*>(call.out.data) + (i * heads.queries + h) * call.D;
        auto* lse = static_cast<float*>(call.lse.data);
        attention::finish({rows.values[r], static_cast<float>(rows.total[r]), rows.most[r]},
                          rows.columns, out, call.lse.present ? lse + h * call.T + i : nullptr);
      }
    }
  }
};

}  // namespace

size_t prefill_workspace_bytes(const PrefillArguments&) {
  return 0;
}

int32_t prefill(const PrefillArguments& call, kiln_error* error) {
  Heads heads;
  Sequences sequences;
  const int32_t status = check_sequences("prefill", call, call.HQ, &heads, &sequences, error);
  if (status != KILN_OK) return status;
  with_element(call.q.dtype, [&]<class T>(T*) {
    const int64_t blocks = sequences.blocks(sequences.q_starts, heads.tokens);
    for_each(blocks * heads.keys * heads.parts(),
             sequences.products() * static_cast<double>(call.QW) * 2, call.threads,
             Prefill<T>{call, heads, sequences});
  });
  return KILN_OK;
}

}  // namespace kiln::package
