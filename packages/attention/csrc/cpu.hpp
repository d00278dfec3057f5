// SPDX-License-Identifier: Apache-2.0
//
// Cpu: what the CPU's ops share: how heads and sequences become items, which threads take, and what
// of a call is refused. Before it: the glue. After it: attend.hpp.
#pragma once

#include <math.h>

#include "attend.hpp"
#include "cpu/threads.hpp"
#include "package.gen.hpp"

namespace kiln::package {

using attention::Span;
using gated_mlp::cpu::Bfloat16;
using gated_mlp::cpu::Float16;
using gated_mlp::cpu::Team;

// In products; below, calling a thread costs more than it saves.
inline constexpr double kThreadWork = 1 << 19;

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
inline int64_t quotient(int64_t a, int64_t b) {  // rounded up
  return (a + b - 1) / b;
}

// Calls `function` with a null pointer of the element type.
template <class Function>
void with_element(sdk::DType dtype, const Function& function) {
  switch (dtype) {
    case sdk::DType::kFloat16:
      return function(static_cast<Float16*>(nullptr));
    case sdk::DType::kBFloat16:
      return function(static_cast<Bfloat16*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

template <class Function>
void for_each(int64_t items, double products, uint32_t threads, const Function& function) {
  using gated_mlp::cpu::run_team;
  using gated_mlp::cpu::threads_for;
  if (items == 0) return;
  run_team(threads_for(products / kThreadWork + 1, items, threads),
           [&](Team& team) { team.for_each_item(items, function); });
}

// How the heads of q go with those of k and v.
struct Heads {
  int64_t queries = 0;  // heads of q
  int64_t keys = 0;
  int64_t group = 0;                                          // of q to one of k
  int64_t at_once = 0;                                        // of a group, in one item
  int64_t tokens = 0;                                         // of one item
  int64_t parts() const { return quotient(group, at_once); }  // of a group
};

inline int32_t check_heads(const char* op, int64_t width, int64_t queries, int64_t keys,
                           int64_t columns, Heads* heads, kiln_error* error) {
  if (columns % attention::kColumns != 0 || columns < 1 || columns > attention::kMostColumns) {
    return sdk::fail(error, KILN_UNSUPPORTED, "%s: D is %lld; expected a multiple of %d up to %d",
                     op, static_cast<long long>(columns), attention::kColumns,
                     attention::kMostColumns);
  }
  if (width != queries * columns) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: q has %lld columns; expected HQ D = %lld, as out has", op,
                     static_cast<long long>(width), static_cast<long long>(queries * columns));
  }
  if (queries < 1 || keys < 1 || queries % keys != 0) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: q has %lld heads, k and v have %lld; expected a multiple of those", op,
                     static_cast<long long>(queries), static_cast<long long>(keys));
  }
  heads->queries = queries;
  heads->keys = keys;
  heads->group = queries / keys;
  heads->at_once = smaller(heads->group, attention::kMostRows);
  heads->tokens = attention::kMostRows / heads->at_once;
  return KILN_OK;
}

inline float scale_of(double scale, int64_t columns) {
  return static_cast<float>(scale == 0 ? 1 / sqrt(static_cast<double>(columns)) : scale);
}

// What a query at `position` sees of `keys` keys.
inline Span span_of(int64_t position, int64_t keys, int64_t left, int64_t right) {
  Span span{0, keys};
  if (left >= 0 && left < position) span.first = position - left;
  if (right >= 0 && right < keys - position) span.end = larger(0, position + right + 1);
  return span;
}

inline int32_t check_starts(const char* op, const char* name, const sdk::Tensor& starts,
                            int64_t rows, kiln_error* error) {
  const auto* values = static_cast<const int32_t*>(starts.data);
  for (int64_t i = 0; i < starts.shape[0]; ++i) {
    const int64_t least = i == 0 ? 0 : values[i - 1];
    if (values[i] >= least && values[i] <= (i == 0 ? 0 : rows)) continue;
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: %s[%lld] is %d; expected 0, then numbers that do not fall, up to "
                     "%lld",
                     op, name, static_cast<long long>(i), values[i], static_cast<long long>(rows));
  }
  return KILN_OK;
}

// The sequences of a call with starts, checked, and their blocks of `rows` rows, which are numbered
// so that sequence b's begin at first_block(b): some of the numbers are none's.
struct Sequences {
  const int32_t* q_starts;
  const int32_t* k_starts;
  int64_t count;

  int64_t queries(int64_t b) const { return q_starts[b + 1] - q_starts[b]; }
  int64_t keys(int64_t b) const { return k_starts[b + 1] - k_starts[b]; }
  double products() const {
    double all = 0;
    for (int64_t b = 0; b < count; ++b) {
      all += static_cast<double>(queries(b)) * static_cast<double>(keys(b));
    }
    return all;
  }
  static int64_t first_block(const int32_t* starts, int64_t b, int64_t rows) {
    return starts[b] / rows + b;
  }
  int64_t blocks(const int32_t* starts, int64_t rows) const {
    return first_block(starts, count, rows);
  }
  int64_t of_block(const int32_t* starts, int64_t block, int64_t rows) const {
    int64_t b = 0;
    for (int64_t end = count; end - b > 1;) {
      const int64_t middle = (b + end) / 2;
      (first_block(starts, middle, rows) <= block ? b : end) = middle;
    }
    return b;
  }
};

// Of prefill and backward, whose arguments have these names.
template <class Arguments>
int32_t check_sequences(const char* op, const Arguments& call, int64_t queries, Heads* heads,
                        Sequences* sequences, kiln_error* error) {
  if (call.D < 1 || call.KW % call.D != 0) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: k and v have %lld columns; expected a multiple of D = %lld", op,
                     static_cast<long long>(call.KW), static_cast<long long>(call.D));
  }
  int32_t status = check_heads(op, call.QW, queries, call.KW / call.D, call.D, heads, error);
  if (status == KILN_OK && call.E < 1) {
    status = sdk::fail(error, KILN_INVALID_ARGUMENT,
                       "%s: cu_seqlens_q and cu_seqlens_k are empty; expected {0, T} and {0, S} of "
                       "one sequence",
                       op);
  }
  if (status == KILN_OK) {
    status = check_starts(op, "cu_seqlens_q", call.cu_seqlens_q, call.T, error);
  }
  if (status == KILN_OK) {
    status = check_starts(op, "cu_seqlens_k", call.cu_seqlens_k, call.S, error);
  }
  *sequences = {static_cast<const int32_t*>(call.cu_seqlens_q.data),
                static_cast<const int32_t*>(call.cu_seqlens_k.data), call.E - 1};
  return status;
}

}  // namespace kiln::package
