// SPDX-License-Identifier: Apache-2.0
//
// Backward on a CPU. The powers come back from q, k and lse; with delta = sum(grad_out out) -
// grad_lse of a query, the gradient of a score is power (grad_out v - delta). One region computes
// the deltas, one the gradient of q by blocks of queries, one those of k and v by blocks of keys,
// in one order over all queries that see them: threads change no result.
#include "cpu.hpp"

namespace kiln::package {
namespace {

using attention::Floats;
using attention::kLanes;
using attention::kMostColumns;

constexpr int64_t kBlock = 8;  // queries, or keys, whose gradients are summed at once
constexpr int64_t kRun = 64;   // of what they are sums of; the sums of runs are added

// Rows of one head: D elements each, `stride` apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride;
  T* row(int64_t i) const { return data + i * stride; }
};

// A sequence as one head of q and the head of k and v that it shares see it.
template <class T>
struct Pair {
  HeadRows<const T> q, k, v, grad_out;
  const float* lse;    // of the sequence's first query
  const float* delta;  // likewise
  int64_t queries;
  int64_t keys;
  int64_t left;
  int64_t right;
  int columns;
  float scale;

  bool sees(int64_t query, int64_t key) const {
    const Span span = span_of(query + keys - queries, keys, left, right);
    return key >= span.first && key < span.end;
  }
};

template <class T>
float dot(const T* a, const T* b, int columns) {
  Floats sum[2] = {};
  for (int d = 0; d < columns; d += 2 * kLanes) {
    sum[0] += attention::load(a + d) * attention::load(b + d);
    if (d + kLanes < columns)
      sum[1] += attention::load(a + d + kLanes) * attention::load(b + d + kLanes);
  }
  return attention::sum_of(sum[0] + sum[1]);
}

template <class T>
void add(float* sums, const T* row, float factor, int columns) {
  for (int d = 0; d < columns; d += kLanes)
    attention::store(sums + d, attention::load(sums + d) + attention::load(row + d) * factor);
}

// Gradients of up to kBlock rows: a run's, and those of the runs before it.
struct Sums {
  alignas(64) float run[kBlock][kMostColumns] = {};
  alignas(64) float all[kBlock][kMostColumns] = {};

  void end_run(int columns) {
    for (int64_t i = 0; i < kBlock; ++i) {
      add(all[i], run[i], 1, columns);
      for (int d = 0; d < columns; d += kLanes) attention::store(&run[i][d], Floats{});
    }
  }
};

template <class T>
void give(T* to, const float* sums, float factor, int columns) {
  for (int d = 0; d < columns; d += kLanes)
    attention::store(to + d, attention::load(sums + d) * factor);
}

// The power of a score, and the score's gradient.
struct Score {
  float power;
  float gradient;
};
template <class T>
Score score_of(const Pair<T>& pair, int64_t query, int64_t key) {
  if (!pair.sees(query, key)) return {0, 0};
  const float score = dot(pair.q.row(query), pair.k.row(key), pair.columns) * pair.scale;
  const float power = expf(score - pair.lse[query]);
  const float of_power = dot(pair.grad_out.row(query), pair.v.row(key), pair.columns);
  return {power, power * (of_power - pair.delta[query])};
}

// Of the queries [begin, end), at most kBlock.
template <class T>
void grad_queries(const Pair<T>& pair, int64_t begin, int64_t end, HeadRows<T> grad_q) {
  Sums sums;
  for (int64_t key = 0; key < pair.keys; ++key) {
    for (int64_t i = begin; i < end; ++i) {
      const float gradient = score_of(pair, i, key).gradient;
      if (gradient != 0) add(sums.run[i - begin], pair.k.row(key), gradient, pair.columns);
    }
    if (key % kRun == kRun - 1) sums.end_run(pair.columns);
  }
  sums.end_run(pair.columns);
  for (int64_t i = begin; i < end; ++i) {
    give(grad_q.row(i), sums.all[i - begin], pair.scale, pair.columns);
  }
}

// Of the keys [begin, end), at most kBlock: pair(h) for each head h of `group`.
template <class T, class PairOf>
void grad_keys(const PairOf& pair_of, int64_t group, int64_t begin, int64_t end, HeadRows<T> grad_k,
               HeadRows<T> grad_v) {
  Sums of_k;
  Sums of_v;
  Pair<T> pair = pair_of(0);
  for (int64_t h = 0; h < group; ++h) {
    pair = pair_of(h);
    for (int64_t i = 0; i < pair.queries; ++i) {
      for (int64_t key = begin; key < end; ++key) {
        const Score score = score_of(pair, i, key);
        if (score.power == 0) continue;
        add(of_v.run[key - begin], pair.grad_out.row(i), score.power, pair.columns);
        add(of_k.run[key - begin], pair.q.row(i), score.gradient, pair.columns);
      }
      if (i % kRun != kRun - 1 && i + 1 < pair.queries) continue;
      of_v.end_run(pair.columns);
      of_k.end_run(pair.columns);
    }
  }
  for (int64_t key = begin; key < end; ++key) {
    give(grad_k.row(key), of_k.all[key - begin], pair.scale, pair.columns);
    give(grad_v.row(key), of_v.all[key - begin], 1, pair.columns);
  }
}

template <class T>
struct Backward {
  const BackwardArguments& call;
  const Heads& heads;
  const Sequences& sequences;
  float* deltas = static_cast<float*>(call.workspace);  // [HQ, T]
  float scale = scale_of(call.scale, call.D);

  // That of a token and a head.
  void delta(int64_t row) const {
    const int64_t token = row / heads.queries;
    const int64_t h = row % heads.queries;
    const auto at = [&](const sdk::Tensor& tensor) {
      return static_cast<const T*>(tensor.data) + row * call.D;
    };
    const int64_t place = h * call.T + token;
    deltas[place] = dot(at(call.grad_out), at(call.out), static_cast<int>(call.D));
    if (call.grad_lse.present)
      deltas[place] -= static_cast<const float*>(call.grad_lse.data)[place];
  }

  HeadRows<T> rows(const sdk::Tensor& tensor, int64_t row, int64_t head) const {
    return {static_cast<T*>(tensor.data) + row * tensor.stride[0] + head * call.D,
            tensor.stride[0]};
  }
  HeadRows<const T> given(const sdk::Tensor& tensor, int64_t row, int64_t head) const {
    const HeadRows<T> all = rows(tensor, row, head);
    return {all.data, all.stride};
  }
  Pair<T> pair(int64_t b, int64_t h) const {
    const int64_t q_first = sequences.q_starts[b];
    const int64_t k_first = sequences.k_starts[b];
    const int64_t head = h / heads.group;
    return {.q = given(call.q, q_first, h),
            .k = given(call.k, k_first, head),
            .v = given(call.v, k_first, head),
            .grad_out = {static_cast<const T*>(call.grad_out.data) +
                             (q_first * heads.queries + h) * call.D,
                         heads.queries * call.D},
            .lse = static_cast<const float*>(call.lse.data) + h * call.T + q_first,
            .delta = deltas + h * call.T + q_first,
            .queries = sequences.queries(b),
            .keys = sequences.keys(b),
            .left = call.window_left,
            .right = call.window_right,
            .columns = static_cast<int>(call.D),
            .scale = scale};
  }

  void of_queries(int64_t item) const {
    const int64_t h = item % heads.queries;
    const int64_t block = item / heads.queries;
    const int64_t b = sequences.of_block(sequences.q_starts, block, kBlock);
    const int64_t begin = (block - Sequences::first_block(sequences.q_starts, b, kBlock)) * kBlock;
    const int64_t end = smaller(begin + kBlock, sequences.queries(b));
    if (begin < end) {
      grad_queries(pair(b, h), begin, end, rows(call.grad_q, sequences.q_starts[b], h));
    }
  }
  void of_keys(int64_t item) const {
    const int64_t head = item % heads.keys;
    const int64_t block = item / heads.keys;
    const int64_t b = sequences.of_block(sequences.k_starts, block, kBlock);
    const int64_t begin = (block - Sequences::first_block(sequences.k_starts, b, kBlock)) * kBlock;
    const int64_t end = smaller(begin + kBlock, sequences.keys(b));
    if (begin >= end) return;
    grad_keys<T>([&](int64_t h) { return pair(b, head * heads.group + h); }, heads.group, begin,
                 end, rows(call.grad_k, sequences.k_starts[b], head),
                 rows(call.grad_v, sequences.k_starts[b], head));
  }
};

}  // namespace

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return static_cast<size_t>(call.HQ * call.T) * sizeof(float);
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  Heads heads;
  Sequences sequences;
  const int32_t status = check_sequences("backward", call, call.HQ, &heads, &sequences, error);
  if (status != KILN_OK) return status;
  with_element(call.q.dtype, [&]<class T>(T*) {
    const Backward<T> all{call, heads, sequences};
    const double products = sequences.products() * static_cast<double>(call.QW);
    for_each(call.T * heads.queries, static_cast<double>(call.T * call.QW), call.threads,
             [&](int64_t row) { all.delta(row); });
    for_each(sequences.blocks(sequences.q_starts, kBlock) * heads.queries, products * 3,
             call.threads, [&](int64_t item) { all.of_queries(item); });
    for_each(sequences.blocks(sequences.k_starts, kBlock) * heads.keys, products * 4, call.threads,
             [&](int64_t item) { all.of_keys(item); });
  });
  return KILN_OK;
}

}  // namespace kiln::package
