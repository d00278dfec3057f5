// SPDX-License-Identifier: Apache-2.0
//
// Decode and append on a CPU. Where there are few sequences and heads, an item of decode is a part
// of the keys, and a second region adds up the parts: how many there are depends on extents alone,
// so that the result does not depend on the threads.
#include <string.h>

#include "cpu.hpp"

namespace kiln::package {
namespace {

using attention::Rows;

constexpr int64_t kPartKeys = 512;  // the fewest of a part
constexpr int64_t kParts = 64;      // of all sequences and heads, about

// Decode's keys are shared out in so many parts.
int64_t parts_of(const DecodeArguments& call) {
  const int64_t items = larger(1, call.B * call.HK);
  return larger(1, smaller(quotient(call.MP * call.PS, kPartKeys), kParts / items));
}

// Of a part and a row: D values, their total, the largest score.
size_t part_floats(const DecodeArguments& call) {
  return static_cast<size_t>(call.D) + 2;
}

int32_t check_pages(const DecodeArguments& call, kiln_error* error) {
  const auto* lengths = static_cast<const int32_t*>(call.lengths.data);
  for (int64_t b = 0; b < call.B; ++b) {
    if (lengths[b] < 0 || lengths[b] > call.MP * call.PS) {
      return sdk::fail(
          error, KILN_INVALID_ARGUMENT, "decode: lengths[%lld] is %d; expected 0 to MP PS = %lld",
          static_cast<long long>(b), lengths[b], static_cast<long long>(call.MP * call.PS));
    }
    const auto* pages =
        static_cast<const int32_t*>(call.block_table.data) + b * call.block_table.stride[0];
    for (int64_t i = 0; i < quotient(lengths[b], larger(1, call.PS)); ++i) {
      if (pages[i] >= 0 && pages[i] < call.P) continue;
      return sdk::fail(error, KILN_INVALID_ARGUMENT,
                       "decode: block_table[%lld, %lld] is %d; expected one of %lld pages",
                       static_cast<long long>(b), static_cast<long long>(i), pages[i],
                       static_cast<long long>(call.P));
    }
  }
  return KILN_OK;
}

template <class T>
struct Decode {
  const DecodeArguments& call;
  const Heads& heads;
  int64_t tokens = call.N / call.B;  // of a sequence
  int64_t token_blocks = quotient(tokens, heads.tokens);
  int64_t parts = parts_of(call);
  int64_t items = call.B * heads.keys * heads.parts() * token_blocks * parts;
  float scale = scale_of(call.scale, call.D);

  void operator()(int64_t item) const {
    const int64_t part = item % parts;
    const int64_t block = item / parts % token_blocks;
    const int64_t group_part = item / parts / token_blocks % heads.parts();
    const int64_t head = item / parts / token_blocks / heads.parts() % heads.keys;
    const int64_t b = item / parts / token_blocks / heads.parts() / heads.keys;
    const int64_t keys = static_cast<const int32_t*>(call.lengths.data)[b];
    const int64_t first = head * heads.group + group_part * heads.at_once;
    const int64_t last = smaller(first + heads.at_once, (head + 1) * heads.group);
    const int64_t begin = block * heads.tokens;
    const int64_t end = smaller(begin + heads.tokens, tokens);
    const int64_t size = quotient(keys, parts);
    const Span mine{smaller(part * size, keys), smaller((part + 1) * size, keys)};
    Rows rows;
    rows.columns = static_cast<int>(call.D);
    for (int64_t i = begin; i < end; ++i) {
      Span span = span_of(keys - tokens + i, keys, call.window_left, 0);
      span = {larger(span.first, mine.first), smaller(span.end, mine.end)};
      const T* q = static_cast<const T*>(call.q.data) + (b * tokens + i) * call.q.stride[0];
      for (int64_t h = first; h < last; ++h) rows.add(q + h * call.D, scale, span);
    }
    const auto* pages =
        static_cast<const int32_t*>(call.block_table.data) + b * call.block_table.stride[0];
    const auto place = [&](int64_t n) {
      const int64_t row = pages[n / call.PS] * call.PS + n % call.PS;
      return (row * heads.keys + head) * call.D;
    };
    attention::attend(rows, static_cast<const T*>(call.k_pages.data),
                      static_cast<const T*>(call.v_pages.data), rows.all(), place, place);
    int r = 0;
    for (int64_t i = b * tokens + begin; i < b * tokens + end; ++i) {
      for (int64_t h = first; h < last; ++h, ++r) {
        const attention::Sums sums = {rows.values[r], static_cast<float>(rows.total[r]),
                                      rows.most[r]};
        if (parts == 1) {
          give(i, h, sums);
        } else {
          float* kept = sums_of(i, h, part);
          memcpy(kept, sums.values, static_cast<size_t>(call.D) * sizeof(float));
          kept[call.D] = sums.total;
          kept[call.D + 1] = sums.most;
        }
      }
    }
  }

  // Adds up the parts of a row.
  void add_parts(int64_t row) const {
    const int64_t i = row / heads.queries;
    const int64_t h = row % heads.queries;
    float most = -INFINITY;
    for (int64_t part = 0; part < parts; ++part) {
      const float other = sums_of(i, h, part)[call.D + 1];
      most = other > most ? other : most;
    }
    alignas(64) float values[attention::kMostColumns] = {};
    float total = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const float* kept = sums_of(i, h, part);
      if (kept[call.D] == 0) continue;
      const float scale = most == -INFINITY ? 1 : exp2f(kept[call.D + 1] - most);
      total += kept[call.D] * scale;
      for (int64_t d = 0; d < call.D; ++d) values[d] += kept[d] * scale;
    }
    give(i, h, {values, total, most});
  }

  float* sums_of(int64_t i, int64_t h, int64_t part) const {
    const int64_t place = (i * heads.queries + h) * parts + part;
    return static_cast<float*>(call.workspace) + static_cast<size_t>(place) * part_floats(call);
  }
  void give(int64_t i, int64_t h, const attention::Sums& sums) const {
    auto* lse = static_cast<float*>(call.lse.data);
    attention::finish(sums, static_cast<int>(call.D),
                      static_cast<T*>(call.out.data) + (i * heads.queries + h) * call.D,
                      call.lse.present ? lse + h * call.N + i : nullptr);
  }
};

}  // namespace

size_t decode_workspace_bytes(const DecodeArguments& call) {
  const int64_t parts = parts_of(call);
  if (parts == 1) return 0;
  return static_cast<size_t>(call.N * call.HQ * parts) * part_floats(call) * sizeof(float);
}

int32_t decode(const DecodeArguments& call, kiln_error* error) {
  Heads heads;
  int32_t status = check_heads("decode", call.QW, call.HQ, call.HK, call.D, &heads, error);
  if (status != KILN_OK) return status;
  if (call.B == 0 ? call.N != 0 : call.N % call.B != 0) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "decode: q has %lld rows; expected a multiple of the %lld sequences",
                     static_cast<long long>(call.N), static_cast<long long>(call.B));
  }
  status = check_pages(call, error);
  if (status != KILN_OK || call.N == 0) return status;
  with_element(call.q.dtype, [&]<class T>(T*) {
    const Decode<T> all{call, heads};
    double products = 0;
    for (int64_t b = 0; b < call.B; ++b) {
      products += static_cast<double>(static_cast<const int32_t*>(call.lengths.data)[b]);
    }
    products *= static_cast<double>(all.tokens * call.QW) * 2;
    for_each(all.items, products, call.threads, all);
    if (all.parts > 1) {
      for_each(call.N * call.HQ, static_cast<double>(call.N * call.QW * all.parts), call.threads,
               [&](int64_t row) { all.add_parts(row); });
    }
  });
  return KILN_OK;
}

// ---- append ----

size_t append_workspace_bytes(const AppendArguments&) {
  return 0;
}

int32_t append(const AppendArguments& call, kiln_error* error) {
  if (call.KW != call.HK * call.D) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "append: k and v have %lld columns; expected HK D = %lld, as the pages have",
                     static_cast<long long>(call.KW), static_cast<long long>(call.HK * call.D));
  }
  const auto* slots = static_cast<const int32_t*>(call.slots.data);
  for (int64_t n = 0; n < call.N; ++n) {
    if (slots[n] < call.P * call.PS) continue;
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "append: slots[%lld] is %d; the pages have P PS = %lld",
                     static_cast<long long>(n), slots[n], static_cast<long long>(call.P * call.PS));
  }
  const auto item = static_cast<int64_t>(sdk::dtype_bytes(call.k.dtype));
  const auto write = [&](const sdk::Tensor& from, const sdk::Tensor& to, int64_t n) {
    memcpy(static_cast<char*>(to.data) + slots[n] * call.KW * item,
           static_cast<const char*>(from.data) + n * from.stride[0] * item,
           static_cast<size_t>(call.KW * item));
  };
  for (int64_t n = 0; n < call.N; ++n) {
    if (slots[n] < 0) continue;
    write(call.k, call.k_pages, n);
    write(call.v, call.v_pages, n);
  }
  return KILN_OK;
}

}  // namespace kiln::package
