// SPDX-License-Identifier: Apache-2.0
//
// attention_check: prefill, backward, decode and append against double precision on each device:
// ragged sequences, empty ones and those of one token, groups of heads, windows, views of one
// projection, pages that are NaN wherever nothing was appended, queries that see no key; and what
// is refused. Ends with 0 if all agrees, with 77 if this machine has none of the devices.
//
//   attention_check [--registry R] [--device cpu|cuda] [--light] [FOLDER]     FOLDER: for the
//   records
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <kiln/kiln.hpp>
#include <kiln/ops/attention.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using kiln::DType;
using kiln::Tensor;
using kiln::testing::Array;
using kiln::testing::Check;
namespace ops = kiln::ops::attention;

constexpr double kNone = -std::numeric_limits<double>::infinity();

const char* name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}
/// One rounding to the dtype, and on a GPU one of the powers that the values are multiplied by.
double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 1.5e-3 : 1.2e-2;
}

/// Of gradients: out, from which they are computed, is rounded, and so are those of the scores.
double gradient_bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 4e-3 : 3e-2;
}

struct Heads {
  std::int64_t queries, keys, columns;
};

/// A row of HQ D, then HK D for k and v: what one projection gives, with `more` columns behind it.
class Projection {
 public:
  Projection(kiln::Device device, DType dtype, std::int64_t rows, Heads heads, std::int64_t more,
             std::mt19937& engine)
      : rows_(rows),
        heads_(heads),
        width_((heads.queries + 2 * heads.keys) * heads.columns + more),
        array_(device, dtype, {rows, width_}) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(rows * width_));
    for (double& value : values) value = normal(engine);
    array_.set(values);
    values_ = array_.values();
  }
  Tensor q() { return view(0, heads_.queries); }
  Tensor k() { return view(heads_.queries, heads_.keys); }
  Tensor v() { return view(heads_.queries + heads_.keys, heads_.keys); }
  /// Of a row and a head, which counts on from q's to k's to v's.
  const double* at(std::int64_t row, std::int64_t head) const {
    return &values_[static_cast<std::size_t>(row * width_ + head * heads_.columns)];
  }
  const double* k_at(std::int64_t row, std::int64_t head) const {
    return at(row, heads_.queries + head);
  }
  const double* v_at(std::int64_t row, std::int64_t head) const {
    return at(row, heads_.queries + heads_.keys + head);
  }

 private:
  Tensor view(std::int64_t head, std::int64_t count) {
    const Tensor whole = array_.tensor();
    DLTensor dl = whole.dl();
    const auto item = static_cast<std::uint64_t>(dl.dtype.bits / 8);
    std::int64_t* shape = shapes_[head == 0 ? 0 : head == heads_.queries ? 1 : 2];
    shape[0] = rows_;
    shape[1] = count * heads_.columns;
    strides_[0] = width_;
    strides_[1] = 1;
    dl.shape = shape;
    dl.strides = strides_;
    dl.byte_offset += static_cast<std::uint64_t>(head * heads_.columns) * item;
    return Tensor(dl);
  }

  std::int64_t rows_;
  Heads heads_;
  std::int64_t width_;
  std::int64_t shapes_[3][2] = {};
  std::int64_t strides_[2] = {};
  Array array_;
  std::vector<double> values_;
};

struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
};

/// One query of one head, in double precision: `keys` keys, key and value of each by its number.
/// Adds to `out`; returns the lse.
template <class Key, class Value>
double attend(const double* q, std::int64_t columns, std::int64_t position, std::int64_t keys,
              Window window, double scale, const Key& key, const Value& value, double* out) {
  const std::int64_t first =
      window.left < 0 ? 0 : std::max<std::int64_t>(0, position - window.left);
  const std::int64_t end = window.right < 0 ? keys : std::min(keys, position + window.right + 1);
  std::vector<double> scores;
  double most = kNone;
  for (std::int64_t n = first; n < end; ++n) {
    scores.push_back(scale * std::inner_product(q, q + columns, key(n), 0.0));
    most = std::max(most, scores.back());
  }
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - most);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double* v = value(first + static_cast<std::int64_t>(i));
    for (std::int64_t d = 0; d < columns; ++d) out[d] += scores[i] / total * v[d];
  }
  return scores.empty() ? kNone : most + std::log(total);
}

/// The same query's part in the gradients: adds to that of q, and calls of_key(n, d) and
/// of_value(n, d) for the places of those of a key and a value. grad_lse: that of the query's lse.
template <class Key, class Value, class OfKey, class OfValue>
void differentiate(const double* q, const double* grad_out, double grad_lse, std::int64_t columns,
                   std::int64_t position, std::int64_t keys, Window window, double scale,
                   const Key& key, const Value& value, double* grad_q, const OfKey& of_key,
                   const OfValue& of_value) {
  const auto width = static_cast<std::size_t>(columns);
  std::vector<double> out(width);
  const double lse = attend(q, columns, position, keys, window, scale, key, value, out.data());
  const double delta =
      std::inner_product(grad_out, grad_out + columns, out.begin(), 0.0) - grad_lse;
  for (std::int64_t n = 0; n < keys && lse != kNone; ++n) {
    if (window.left >= 0 && n < position - window.left) continue;
    if (window.right >= 0 && n > position + window.right) continue;
    const double* k = key(n);
    const double* v = value(n);
    const double power = std::exp(scale * std::inner_product(q, q + columns, k, 0.0) - lse);
    const double of_score =
        power * (std::inner_product(grad_out, grad_out + columns, v, 0.0) - delta) * scale;
    double* grad_k = of_key(n);
    double* grad_v = of_value(n);
    for (std::int64_t d = 0; d < columns; ++d) {
      grad_q[d] += of_score * k[d];
      grad_k[d] += of_score * q[d];
      grad_v[d] += power * grad_out[d];
    }
  }
}

class Checker {
 public:
  Checker(Check& check, const kiln::Kernel& kernel)
      : check_(check),
        device_(kernel.device()),
        prefill_(kernel.op<ops::Prefill>()),
        backward_(kernel.op<ops::Backward>()),
        decode_(kernel.op<ops::Decode>()),
        append_(kernel.op<ops::Append>()) {}

  bool on_gpu() const { return device_.kind == kiln::Device::Kind::kCuda; }

  void prefill(DType dtype, Heads heads, const std::vector<double>& q_starts,
               const std::vector<double>& k_starts, Window window, double scale, bool with_lse) {
    const auto tokens = static_cast<std::int64_t>(q_starts.back());
    const auto key_tokens = static_cast<std::int64_t>(k_starts.back());
    // Rows at multiples of 16 elements, as a GPU's copy engine has to have them, and at others.
    const std::int64_t more = scale == 0 ? 16 : 3;
    Projection of_q(device_, dtype, tokens, heads, more, engine_);
    Projection of_k(device_, dtype, key_tokens, heads, more, engine_);
    const Array starts_q = integers(q_starts);
    const Array starts_k = integers(k_starts);
    Array out(device_, dtype, {tokens, heads.queries, heads.columns});
    Array lse(device_, DType::kFloat32, {heads.queries, tokens});
    const ops::Prefill call = {
        .q = of_q.q(),
        .k = of_k.k(),
        .v = of_k.v(),
        .cu_seqlens_q = starts_q.tensor(),
        .cu_seqlens_k = starts_k.tensor(),
        .out = out.tensor(),
        .lse = with_lse ? lse.tensor() : Tensor(),
        .attributes = {.scale = scale, .window_left = window.left, .window_right = window.right}};
    prefill_.run(call, workspace_.reserve(prefill_.workspace_bytes(call)));

    std::vector<double> expected(out.size());
    std::vector<double> expected_lse(lse.size());
    for (std::size_t b = 0; b + 1 < q_starts.size(); ++b) {
      const auto q_begin = static_cast<std::int64_t>(q_starts[b]);
      const auto q_end = static_cast<std::int64_t>(q_starts[b + 1]);
      const auto k_begin = static_cast<std::int64_t>(k_starts[b]);
      const std::int64_t keys = static_cast<std::int64_t>(k_starts[b + 1]) - k_begin;
      for (std::int64_t i = q_begin; i < q_end; ++i) {
        for (std::int64_t h = 0; h < heads.queries; ++h) {
          const std::int64_t shared = h / (heads.queries / heads.keys);
          expected_lse[static_cast<std::size_t>(h * tokens + i)] = attend(
              of_q.at(i, h), heads.columns, i - q_end + keys, keys, window, scale_of(scale, heads),
              [&](std::int64_t n) { return of_k.k_at(k_begin + n, shared); },
              [&](std::int64_t n) { return of_k.v_at(k_begin + n, shared); },
              &expected[static_cast<std::size_t>((i * heads.queries + h) * heads.columns)]);
        }
      }
    }
    compare("prefill", dtype, out, expected);
    if (!with_lse) return;
    compare_lse("prefill", dtype, lse, expected_lse);
    backward(dtype, heads, q_starts, k_starts, window, scale, of_q, of_k, out, lse);
  }

  /// The keys of each sequence come by append, into pages in no order.
  void decode(DType dtype, Heads heads, std::int64_t page_rows, const std::vector<double>& lengths,
              std::int64_t new_tokens, std::int64_t left, bool with_lse) {
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    const auto longest =
        static_cast<std::int64_t>(*std::max_element(lengths.begin(), lengths.end()));
    const std::int64_t table_pages = longest / page_rows + 2;
    const std::int64_t pages = sequences * table_pages + 1;
    std::vector<double> numbers(static_cast<std::size_t>(pages));
    std::iota(numbers.begin(), numbers.end(), 0.0);
    std::shuffle(numbers.begin(), numbers.end(), engine_);
    std::vector<double> table(static_cast<std::size_t>(sequences * table_pages), 1e9);
    std::vector<double> slots = {-1};  // one row that goes nowhere
    std::vector<std::int64_t> first_row;
    for (std::int64_t b = 0; b < sequences; ++b) {
      const auto length = static_cast<std::int64_t>(lengths[static_cast<std::size_t>(b)]);
      first_row.push_back(static_cast<std::int64_t>(slots.size()));
      for (std::int64_t n = 0; n < length; ++n) {
        const auto at = static_cast<std::size_t>(b * table_pages + n / page_rows);
        table[at] = numbers[at];
        slots.push_back(numbers[at] * static_cast<double>(page_rows) +
                        static_cast<double>(n % page_rows));
      }
    }
    const auto rows = static_cast<std::int64_t>(slots.size());
    const std::int64_t more = with_lse ? 16 : 3;
    Projection kept(device_, dtype, rows, heads, more, engine_);
    Projection fresh(device_, dtype, sequences * new_tokens, heads, more, engine_);
    Array k_pages(device_, dtype, {pages, page_rows, heads.keys, heads.columns});
    Array v_pages(device_, dtype, {pages, page_rows, heads.keys, heads.columns});
    append_.run({.k = kept.k(),
                 .v = kept.v(),
                 .slots = integers(slots).tensor(),
                 .k_pages = k_pages.tensor(),
                 .v_pages = v_pages.tensor()});
    check_pages(dtype, heads, slots, kept, k_pages, v_pages);

    Array of_table(device_, DType::kInt32, {sequences, table_pages});
    of_table.set(table);
    const Array of_lengths = integers(lengths);
    const std::int64_t tokens = sequences * new_tokens;
    Array out(device_, dtype, {tokens, heads.queries, heads.columns});
    Array lse(device_, DType::kFloat32, {heads.queries, tokens});
    const ops::Decode call = {.q = fresh.q(),
                              .k_pages = k_pages.tensor(),
                              .v_pages = v_pages.tensor(),
                              .block_table = of_table.tensor(),
                              .lengths = of_lengths.tensor(),
                              .out = out.tensor(),
                              .lse = with_lse ? lse.tensor() : Tensor(),
                              .attributes = {.window_left = left}};
    decode_.run(call, workspace_.reserve(decode_.workspace_bytes(call)));

    std::vector<double> expected(out.size());
    std::vector<double> expected_lse(lse.size());
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto b = static_cast<std::size_t>(i / new_tokens);
      const auto keys = static_cast<std::int64_t>(lengths[b]);
      for (std::int64_t h = 0; h < heads.queries; ++h) {
        const std::int64_t shared = h / (heads.queries / heads.keys);
        expected_lse[static_cast<std::size_t>(h * tokens + i)] = attend(
            fresh.at(i, h), heads.columns, keys - new_tokens + i % new_tokens, keys,
            {.left = left, .right = 0}, scale_of(0, heads),
            [&](std::int64_t n) { return kept.k_at(first_row[b] + n, shared); },
            [&](std::int64_t n) { return kept.v_at(first_row[b] + n, shared); },
            &expected[static_cast<std::size_t>((i * heads.queries + h) * heads.columns)]);
      }
    }
    compare("decode", dtype, out, expected);
    if (with_lse) compare_lse("decode", dtype, lse, expected_lse);
  }

  /// From what prefill gave.
  void backward(DType dtype, Heads heads, const std::vector<double>& q_starts,
                const std::vector<double>& k_starts, Window window, double scale, Projection& of_q,
                Projection& of_k, const Array& out, const Array& lse) {
    const auto tokens = static_cast<std::int64_t>(q_starts.back());
    const auto key_tokens = static_cast<std::int64_t>(k_starts.back());
    const std::int64_t width = heads.queries * heads.columns;
    const std::int64_t key_width = heads.keys * heads.columns;
    Array grad_out(device_, dtype, {tokens, heads.queries, heads.columns});
    std::vector<double> values(grad_out.size());
    std::normal_distribution<double> normal;
    for (double& value : values) value = normal(engine_);
    grad_out.set(values);
    values = grad_out.values();
    Array grad_lse(device_, DType::kFloat32, {heads.queries, tokens});
    std::vector<double> of_lse(grad_lse.size());
    for (double& value : of_lse) value = normal(engine_);
    grad_lse.set(of_lse);
    const bool with_lse = heads.queries != heads.keys;
    if (!with_lse) std::fill(of_lse.begin(), of_lse.end(), 0.0);
    const Array starts_q = integers(q_starts);
    const Array starts_k = integers(k_starts);
    Array grad_q(device_, dtype, {tokens, width}, scale == 0 ? 16 : 8);
    Array grad_k(device_, dtype, {key_tokens, key_width}, scale == 0 ? 32 : 3);
    Array grad_v(device_, dtype, {key_tokens, key_width});
    const ops::Backward call = {
        .grad_out = grad_out.tensor(),
        .q = of_q.q(),
        .k = of_k.k(),
        .v = of_k.v(),
        .out = out.tensor(),
        .lse = lse.tensor(),
        .cu_seqlens_q = starts_q.tensor(),
        .cu_seqlens_k = starts_k.tensor(),
        .grad_lse = with_lse ? grad_lse.tensor() : Tensor(),
        .grad_q = grad_q.tensor(),
        .grad_k = grad_k.tensor(),
        .grad_v = grad_v.tensor(),
        .attributes = {.scale = scale, .window_left = window.left, .window_right = window.right}};
    backward_.run(call, workspace_.reserve(backward_.workspace_bytes(call)));

    std::vector<double> of_queries(grad_q.size());
    std::vector<double> of_keys(grad_k.size());
    std::vector<double> of_values(grad_v.size());
    for (std::size_t b = 0; b + 1 < q_starts.size(); ++b) {
      const auto q_end = static_cast<std::int64_t>(q_starts[b + 1]);
      const auto k_begin = static_cast<std::int64_t>(k_starts[b]);
      const std::int64_t keys = static_cast<std::int64_t>(k_starts[b + 1]) - k_begin;
      for (auto i = static_cast<std::int64_t>(q_starts[b]); i < q_end; ++i) {
        for (std::int64_t h = 0; h < heads.queries; ++h) {
          const std::int64_t shared = h / (heads.queries / heads.keys);
          const auto at = static_cast<std::size_t>(i * width + h * heads.columns);
          const auto place = [&](std::vector<double>& all, std::int64_t n) {
            return &all[static_cast<std::size_t>((k_begin + n) * key_width +
                                                 shared * heads.columns)];
          };
          differentiate(
              of_q.at(i, h), &values[at], of_lse[static_cast<std::size_t>(h * tokens + i)],
              heads.columns, i - q_end + keys, keys, window, scale_of(scale, heads),
              [&](std::int64_t n) { return of_k.k_at(k_begin + n, shared); },
              [&](std::int64_t n) { return of_k.v_at(k_begin + n, shared); }, &of_queries[at],
              [&](std::int64_t n) { return place(of_keys, n); },
              [&](std::int64_t n) { return place(of_values, n); });
        }
      }
    }
    // Where a query sees one key alone its score has no gradient: what is left of two terms that
    // cancel is compared with the gradient of v.
    const auto gradient = [&](const char* name, const Array& found,
                              const std::vector<double>& expected) {
      double largest = 0;
      for (const double value : expected) largest = std::max(largest, std::abs(value));
      for (const double value : of_values) largest = std::max(largest, std::abs(value));
      check_.compare(std::string(name) + " " + name_of(dtype), found, expected,
                     gradient_bound_of(dtype), std::vector<double>(expected.size(), largest));
    };
    gradient("grad_q", grad_q, of_queries);
    gradient("grad_k", grad_k, of_keys);
    gradient("grad_v", grad_v, of_values);
  }

  /// Sums of 20,000 numbers that are alike, of which a rounding does not cancel another, and a
  /// window that ends beyond all integers. On a CPU, whose results are float32.
  void long_sums() {
    constexpr std::int64_t kMany = 20000;
    const DType dtype = DType::kFloat32;
    const Array zero = filled(dtype, {kMany, 64}, 0), tenth = filled(dtype, {kMany, 64}, 0.1);
    const Array one = filled(dtype, {1, 64}, 0);
    const Array many_starts = integers({0, kMany}), one_start = integers({0, 1});
    const double value = tenth.values()[0];
    Array out(device_, DType::kFloat32, {1, 1, 64});
    prefill_.run({.q = one.tensor(),
                  .k = zero.tensor(),
                  .v = tenth.tensor(),
                  .cu_seqlens_q = one_start.tensor(),
                  .cu_seqlens_k = many_starts.tensor(),
                  .out = out.tensor(),
                  .attributes = {.window_right = INT64_MAX}});
    compare("prefill", DType::kFloat32, out, std::vector<double>(64, value));

    const Array grad_out = filled(dtype, {kMany, 1, 64}, 0.1);
    const Array many_out = filled(dtype, {kMany, 1, 64}, 0);
    Array lse(device_, DType::kFloat32, {1, kMany});
    lse.set(std::vector<double>(kMany, 0.0));
    Array grad_q(device_, DType::kFloat32, {kMany, 64});
    Array grad_k(device_, DType::kFloat32, {1, 64});
    Array grad_v(device_, DType::kFloat32, {1, 64});
    const ops::Backward call = {.grad_out = grad_out.tensor(),
                                .q = zero.tensor(),
                                .k = one.tensor(),
                                .v = one.tensor(),
                                .out = many_out.tensor(),
                                .lse = lse.tensor(),
                                .cu_seqlens_q = many_starts.tensor(),
                                .cu_seqlens_k = one_start.tensor(),
                                .grad_q = grad_q.tensor(),
                                .grad_k = grad_k.tensor(),
                                .grad_v = grad_v.tensor(),
                                .attributes = {.window_left = INT64_MAX}};
    backward_.run(call, workspace_.reserve(backward_.workspace_bytes(call)));
    check_.compare("grad_v float32", grad_v, std::vector<double>(64, kMany * value),
                   gradient_bound_of(DType::kFloat32));
  }

  /// Starts of one number are of no sequence, whatever lies behind them: nothing is written.
  void no_sequence(std::int64_t columns) {
    const DType dtype = DType::kBFloat16;
    const Array q = filled(dtype, {40, columns}, 0.1), lse = filled(DType::kFloat32, {1, 40}, 0.1);
    const Array grad_out = filled(dtype, {40, 1, columns}, 0.1);
    const Array two = integers({0, 40});
    const Tensor both = two.tensor();
    DLTensor first = both.dl();
    std::int64_t one = 1;
    first.shape = &one;
    const Tensor starts(first);
    const Array out(device_, dtype, {40, 1, columns}), grad_q(device_, dtype, {40, columns});
    const Array grad_k(device_, dtype, {40, columns}), grad_v(device_, dtype, {40, columns});
    prefill_.run({.q = q.tensor(),
                  .k = q.tensor(),
                  .v = q.tensor(),
                  .cu_seqlens_q = starts,
                  .cu_seqlens_k = starts,
                  .out = out.tensor()});
    const ops::Backward call = {.grad_out = grad_out.tensor(),
                                .q = q.tensor(),
                                .k = q.tensor(),
                                .v = q.tensor(),
                                .out = grad_out.tensor(),
                                .lse = lse.tensor(),
                                .cu_seqlens_q = starts,
                                .cu_seqlens_k = starts,
                                .grad_q = grad_q.tensor(),
                                .grad_k = grad_k.tensor(),
                                .grad_v = grad_v.tensor()};
    backward_.run(call, workspace_.reserve(backward_.workspace_bytes(call)));
    for (const Array* each : {&out, &grad_q, &grad_k, &grad_v}) {
      check_.compare("no sequence", *each, std::vector<double>(each->size(), std::nan("")), 0);
    }
  }

  /// out may be q: of one head, whose rows of q are compact.
  void in_place() {
    Array q(device_, DType::kBFloat16, {40, 64});
    Array k(device_, DType::kBFloat16, {40, 64});
    Array out(device_, DType::kBFloat16, {40, 1, 64});
    std::vector<double> values(q.size());
    std::normal_distribution<double> normal;
    for (double& value : values) value = normal(engine_);
    q.set(values);
    k.set(values);
    const Array starts = integers({0, 40});
    const auto run = [&](const Tensor& where) {
      prefill_.run({.q = q.tensor(),
                    .k = k.tensor(),
                    .v = k.tensor(),
                    .cu_seqlens_q = starts.tensor(),
                    .cu_seqlens_k = starts.tensor(),
                    .out = where});
    };
    run(out.tensor());
    const Tensor rows = q.tensor();
    DLTensor same = rows.dl();
    std::int64_t shape[] = {40, 1, 64};
    same.ndim = 3;
    same.shape = shape;
    same.strides = nullptr;
    run(Tensor(same));
    check_.compare("in place", q, out.values(), 0);
  }

 private:
  static double scale_of(double scale, Heads heads) {
    return scale == 0 ? 1 / std::sqrt(static_cast<double>(heads.columns)) : scale;
  }
  Array filled(DType dtype, std::vector<std::int64_t> shape, double value) const {
    Array array(device_, dtype, std::move(shape));
    array.set(std::vector<double>(array.size(), value));
    return array;
  }
  Array integers(const std::vector<double>& values) const {
    Array array(device_, DType::kInt32, {static_cast<std::int64_t>(values.size())});
    array.set(values);
    return array;
  }
  void compare(const std::string& op, DType dtype, const Array& out,
               const std::vector<double>& expected) {
    check_.compare(op + " " + name_of(dtype), out, expected, bound_of(dtype));
  }
  /// Where a query sees no key, -inf. The others' differences are absolute: they become factors.
  void compare_lse(const std::string& op, DType dtype, const Array& lse,
                   std::vector<double> expected) {
    std::vector<double> found = lse.values();
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool none = expected[i] == kNone;
      found[i] = none && found[i] == kNone ? 1 : std::exp(found[i] - (none ? 0 : expected[i]));
    }
    Array factors(device_, DType::kFloat32, {static_cast<std::int64_t>(found.size())});
    factors.set(found);
    std::fill(expected.begin(), expected.end(), 1.0);
    check_.compare(op + " lse " + name_of(dtype), factors, expected, 2e-5);
    check_.compare(op + " lse " + name_of(dtype), lse, lse.values(), 0);  // its guards
  }
  /// What was appended is there, bit by bit, and all else is NaN still.
  void check_pages(DType dtype, Heads heads, const std::vector<double>& slots,
                   const Projection& rows, const Array& k_pages, const Array& v_pages) {
    std::vector<double> k(k_pages.size(), std::nan(""));
    std::vector<double> v = k;
    const auto width = static_cast<std::size_t>(heads.keys * heads.columns);
    for (std::size_t n = 0; n < slots.size(); ++n) {
      if (slots[n] < 0) continue;
      const auto row = static_cast<std::int64_t>(n);
      const std::size_t at = static_cast<std::size_t>(slots[n]) * width;
      std::copy_n(rows.k_at(row, 0), width, &k[at]);
      std::copy_n(rows.v_at(row, 0), width, &v[at]);
    }
    const std::string name = std::string("append ") + name_of(dtype);
    check_.compare(name, k_pages, k, 0);
    check_.compare(name, v_pages, v, 0);
  }

  Check& check_;
  kiln::Device device_;
  kiln::TypedOp<ops::Prefill> prefill_;
  kiln::TypedOp<ops::Backward> backward_;
  kiln::TypedOp<ops::Decode> decode_;
  kiln::TypedOp<ops::Append> append_;
  kiln::OwnedWorkspace workspace_{device_};
  std::mt19937 engine_{7};
};

void check_all(Check& check, bool light) {
  Checker checker(check, check.kernel());
  const std::vector<DType> dtypes =
      checker.on_gpu() ? std::vector<DType>{DType::kFloat16, DType::kBFloat16}
                       : std::vector<DType>{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const std::vector<std::int64_t> columns =
      light ? std::vector<std::int64_t>{64, 128} : std::vector<std::int64_t>{64, 128, 256};
  const std::vector<Heads> groups = {{2, 2, 0}, {4, 1, 0}, {16, 2, 0}, {20, 1, 0}};
  // Sequences of 1, 70, 0, 129 and 5 queries.
  const std::vector<double> ragged = {0, 1, 71, 71, 200, 205};
  const std::vector<double> more_keys = {0, 9, 80, 83, 340, 345};
  const std::vector<double> fewer_keys = {0, 0, 31, 40, 141, 146};  // the first query sees none
  const std::vector<double> one = {0, 33};
  const std::vector<double> many = {0, 600, 643};
  for (const DType dtype : dtypes) {
    for (const std::int64_t d : columns) {
      for (Heads heads : groups) {
        heads.columns = d;
        if (light && heads.queries > 4) continue;
        checker.prefill(dtype, heads, ragged, ragged, {}, 0, false);
        checker.prefill(dtype, heads, ragged, ragged, {.right = 0}, 0.2, true);
        checker.prefill(dtype, heads, ragged, more_keys, {.right = 0}, 0, false);
        checker.prefill(dtype, heads, ragged, fewer_keys, {.right = 0}, 0, true);
        checker.prefill(dtype, heads, ragged, more_keys, {.left = 40, .right = 3}, 0, true);
        checker.prefill(dtype, heads, one, one, {.left = 0, .right = 0}, 0, true);
        checker.prefill(dtype, heads, ragged, ragged, {.right = 0}, -0.1, true);
        if (heads.queries == 4 && !light) {
          checker.prefill(dtype, heads, many, many, {.right = 0}, 0, true);
          checker.prefill(dtype, heads, many, many, {.left = 200, .right = 70}, 0, true);
        }
        checker.decode(dtype, heads, 16, {1, 0, 37, 300}, 1, -1, true);
        checker.decode(dtype, heads, 5, {700}, 1, -1, false);
        checker.decode(dtype, heads, 16, {2, 1, 65}, 3, -1, true);
        checker.decode(dtype, heads, 32, {1300, 90}, 1, 100, true);
      }
    }
    if (light || !checker.on_gpu()) continue;
    // So many blocks of queries that each multiprocessor of a large GPU has several.
    checker.prefill(dtype, {16, 1, 128}, {0, 6500, 6900}, {0, 200, 263}, {}, 0, false);
  }
  if (!checker.on_gpu()) checker.long_sums();
  for (const std::int64_t d : columns) checker.no_sequence(d);
  checker.in_place();
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(argc, argv, "attention", 1, check_all);
}
