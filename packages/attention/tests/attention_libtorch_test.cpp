// SPDX-License-Identifier: Apache-2.0
//
// kiln::torch::Attention against LibTorch's own operators on the CPU: sequences of one length,
// ragged ones, pages, gradients; and their refusal.
#include <cstdio>
#include <functional>
#include <kiln/torch/attention.hpp>
#include <string>
#include <vector>

namespace {

int failed = 0;

void expect_close(const char* what, const torch::Tensor& found, const torch::Tensor& expected) {
  const double error = ((found - expected).norm() / expected.norm()).item<double>();
  if (error < 1e-5) return;
  std::printf("FAILED: %s differs by %.1e\n", what, error);
  ++failed;
}

/// [T, H, D] tensors, causal: the last query stands at the last key.
torch::Tensor by_torch(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  const std::int64_t group = q.size(1) / k.size(1);
  const torch::Tensor keys = k.repeat_interleave(group, 1);
  const torch::Tensor values = v.repeat_interleave(group, 1);
  const torch::Tensor scores = torch::einsum("thd,shd->hts", {q, keys}) / std::sqrt(q.size(2));
  const torch::Tensor unseen =
      torch::ones({q.size(0), k.size(0)}, torch::kBool).triu(k.size(0) - q.size(0) + 1);
  return torch::einsum("hts,shd->thd", {scores.masked_fill(unseen, -INFINITY).softmax(-1), values});
}

torch::Tensor starts(std::vector<std::int32_t> values) {
  return torch::tensor(values, torch::kInt32);
}

void check_prefill(kiln::torch::Attention& attention) {
  const auto heads = torch::randn({2, 30, 8, 32}).split_with_sizes({4, 2, 2}, 2);
  const torch::Tensor out = attention->forward(heads[0], heads[1], heads[2]);
  for (int b = 0; b < 2; ++b) {
    expect_close("forward", out[b], by_torch(heads[0][b], heads[1][b], heads[2][b]));
  }
  const torch::Tensor q = heads[0].reshape({60, 4, 32});
  const torch::Tensor k = heads[1].reshape({60, 2, 32});
  const torch::Tensor v = heads[2].reshape({60, 2, 32});
  const torch::Tensor ragged =
      attention->forward(q, k, v, starts({0, 10, 60}), starts({0, 10, 60}));
  expect_close("ragged", ragged.slice(0, 10),
               by_torch(q.slice(0, 10), k.slice(0, 10), v.slice(0, 10)));
}

void check_pages(kiln::torch::Attention& attention) {
  const torch::Tensor k = torch::randn({21, 2, 32});
  const torch::Tensor v = torch::randn({21, 2, 32});
  const torch::Tensor k_pages = torch::full({4, 16, 2, 32}, NAN);
  const torch::Tensor v_pages = torch::full({4, 16, 2, 32}, NAN);
  const torch::Tensor slots = torch::arange(21, torch::kInt32) + 16;  // pages 1 and 2
  attention->append(k, v, slots, k_pages, v_pages);
  const torch::Tensor q = torch::randn({1, 3, 4, 32});
  const torch::Tensor table = torch::tensor({1, 2, 99}, torch::kInt32).view({1, 3});
  const torch::Tensor out = attention->decode(q, k_pages, v_pages, table, starts({21}));
  expect_close("decode", out[0], by_torch(q[0], k, v));
}

void check_gradients(kiln::torch::Attention& attention) {
  const torch::Tensor fused = torch::randn({20, 8, 32}, torch::requires_grad());
  const auto heads = fused.split_with_sizes({4, 2, 2}, 1);
  const torch::Tensor grad = torch::randn({20, 4, 32});
  const auto of = [&](const torch::Tensor& out) {
    return torch::autograd::grad({(out * grad).sum()}, {fused})[0];
  };
  expect_close("gradients", of(attention->forward(heads[0], heads[1], heads[2])),
               of(by_torch(heads[0], heads[1], heads[2])));
}

void check_rows_of_no_sequence(kiln::torch::Attention& attention) {
  at::globalContext().setDeterministicAlgorithms(true, true);  // memory without numbers has NaN
  const torch::Tensor fused = torch::randn({20, 8, 32}, torch::requires_grad());
  const auto heads = fused.split_with_sizes({4, 2, 2}, 1);
  const torch::Tensor all = starts({0, 12});
  const torch::Tensor out = attention->forward(heads[0], heads[1], heads[2], all, all);
  const torch::Tensor found = torch::autograd::grad({out.sum()}, {fused})[0];
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (const torch::Tensor& rows : {out, found}) {
    if (rows.slice(0, 12).eq(0).all().item<bool>()) continue;
    std::printf("FAILED: a row that belongs to no sequence is not zero\n");
    ++failed;
  }
}

void check_refusals(kiln::torch::Attention& attention) {
  const torch::Tensor q = torch::randn({1, 2, 32}, torch::requires_grad());
  const torch::Tensor pages = torch::zeros({1, 16, 2, 32});
  try {
    attention->decode(q, pages, pages, torch::zeros({1, 1}, torch::kInt32), starts({3}));
    std::puts("FAILED: a gradient was not refused");
  } catch (const kiln::Error& error) {
    if (std::string(error.what()).find("decode and append have none") != std::string::npos) return;
    std::printf("FAILED: %s\n", error.what());
  }
  ++failed;
}

/// What an op takes compact alone is refused where it is a part of something else, never read as if
/// it were compact.
void check_strides(kiln::torch::Attention& attention) {
  const torch::NoGradGuard no_gradients;
  const torch::Tensor q = torch::randn({3, 4, 32});
  const torch::Tensor rows = torch::randn({3, 2, 32});
  const torch::Tensor row = rows.slice(0, 0, 1);
  const torch::Tensor both = torch::randn({3, 2, 16, 2, 32});  // keys, then values of a page
  const torch::Tensor pages = both.select(1, 0);
  const torch::Tensor compact = pages.contiguous();
  const torch::Tensor tables = torch::tensor({{0, 1, 2, 99}}, torch::kInt32).repeat({3, 1});
  const torch::Tensor table = tables.slice(1, 0, 3);
  const torch::Tensor columns = torch::tensor({{40, 0}, {33, 3}, {48, 4}}, torch::kInt32);
  const torch::Tensor lengths = columns.select(1, 0);
  const torch::Tensor some = columns.select(1, 1);
  const auto refused = [&](const std::string& name, const auto& call) {
    try {
      call();
      std::printf("FAILED: %s with gaps was not refused\n", name.c_str());
    } catch (const kiln::Error& error) {
      if (std::string(error.what()).find(": " + name + " has strides") != std::string::npos) return;
      std::printf("FAILED: %s\n", error.what());
    }
    ++failed;
  };
  const torch::Tensor known = lengths.contiguous();
  refused("k_pages", [&] { attention->decode(q, pages, compact, table, known); });
  refused("v_pages", [&] { attention->decode(q, compact, pages, table, known); });
  refused("lengths", [&] { attention->decode(q, compact, compact, table, lengths); });
  refused("v_pages", [&] { attention->append(row, row, starts({7}), compact, pages); });
  refused("slots", [&] { attention->append(rows, rows, some, compact, compact.clone()); });
  refused("cu_seqlens_q",
          [&] { attention->forward(pages[0], pages[0], pages[0], some, some.contiguous()); });
  const torch::Tensor out = attention->decode(q, compact, compact, table, known);
  for (int b = 0; b < 3; ++b) {
    const torch::Tensor keys = compact.flatten(0, 1).slice(0, 0, known[b].item<std::int64_t>());
    expect_close("decode of a part of a table", out.slice(0, b, b + 1),
                 by_torch(q.slice(0, b, b + 1), keys, keys));
  }
}

/// As LibTorch's own operators, for which such tensors do not belong together.
void check_other_shapes(kiln::torch::Attention& attention) {
  const torch::Tensor q = torch::randn({2, 5, 4, 32});
  const torch::Tensor k = torch::randn({2, 5, 2, 32});
  const torch::Tensor merged = k.reshape({2, 5, 1, 64});
  const torch::Tensor one = k.reshape({1, 10, 2, 32});
  const torch::Tensor pages = torch::zeros({1, 16, 2, 32});
  const torch::Tensor slots = torch::arange(10, torch::kInt32);
  const std::function<void()> calls[] = {
      [&] { attention->forward(q, merged, merged); }, [&] { attention->forward(q, k, one); },
      [&] { attention->forward(q, one, one); },
      [&] { attention->append(merged, merged, slots, pages, pages.clone()); },
      [&] { attention->append(k, merged, slots, pages, pages.clone()); }};
  for (const auto& call : calls) {
    try {
      call();
      std::puts("FAILED: tensors of other shapes were not refused");
      ++failed;
    } catch (const kiln::Error& error) {
      if (std::string(error.what()).find("attention: ") == 0) continue;
      std::printf("FAILED: %s\n", error.what());
      ++failed;
    }
  }
}

}  // namespace

int main() {
  kiln::torch::Attention attention(kiln::torch::AttentionOptions().causal(true));
  check_prefill(attention);
  check_pages(attention);
  check_gradients(attention);
  check_rows_of_no_sequence(attention);
  check_refusals(attention);
  check_strides(attention);
  check_other_shapes(attention);
  if (failed == 0) std::puts("kiln::torch::Attention agrees with LibTorch");
  return failed == 0 ? 0 : 1;
}
