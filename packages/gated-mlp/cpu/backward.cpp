// SPDX-License-Identifier: Apache-2.0
#include "cpu/backward.hpp"

#include "cpu/panels.hpp"
#include "cpu/threads.hpp"
#include "cpu/tile.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

// Hidden columns of a block: a multiple of every kTileRows and kTileColumns.
constexpr int64_t kHiddenBlock = 672;
static_assert(kHiddenBlock % kTileRows == 0 && kHiddenBlock % kTileColumns == 0);

// One side of a product, [rows, k]: element (r, i) is data[r * stride + i], or data[i * stride + r]
// where the matrix lies the other way.
template <class T>
struct Operand {
  const T* data;
  int64_t stride;
  bool by_rows;

  // `count` of k, from `from` on, of the kUnit rows that begin at `row`.
  template <int kUnit>
  void pack(int64_t row, int64_t rows, int64_t from, int64_t count, float* packed) const {
    if (by_rows) {
      pack_rows<kUnit>(data + row * stride + from, stride, rows - row, count, packed);
    } else {
      pack_columns<kUnit>(data + from * stride + row, stride, rows - row, count, packed);
    }
  }
};

template <class T>
Operand<T> by_rows(const T* data, int64_t stride) {
  return {data, stride, true};
}
template <class T>
Operand<T> by_columns(const T* data, int64_t stride) {
  return {data, stride, false};
}

// out[m, n] = a[m, k] b[n, k]^T, or the same added to what out holds.
template <class A, class B, class Out>
struct Product {
  Operand<A> a;
  Operand<B> b;
  Out* out;
  int64_t stride;  // of out
  int64_t m, n, k;
  bool adds = false;

  void write(const TileSums& sums, int64_t row, int64_t column) const {
    for (int j = 0; j < kTileColumns && column + j < n; j += kLanes) {
      const int64_t left = n - column - j;
      for (int64_t i = 0; i < kTileRows && row + i < m; ++i) {
        Out* to = out + (row + i) * stride + column + j;
        const Floats sum = load(sums.at[i] + j);
        store_up_to(to, adds ? load_up_to(to, left) + sum : sum, left);
      }
    }
  }
};

// Floats that the packed rows of a product take.
int64_t packed_floats(int64_t m, int64_t k) {
  return smaller(round_up(m, kTileRows), kBlockRows) * k;
}

double threads_worth(int64_t m, int64_t d, int64_t h) {
  return 18.0 * static_cast<double>(m) * static_cast<double>(d) * static_cast<double>(h) /
         kFlopsPerThread;
}

struct Sizes {
  int64_t hidden;  // floats of each of three matrices
  int64_t grad_x;  // floats
  int64_t packed;  // floats
  PanelScratch scratch;
};

Sizes sizes_of(int64_t m, int64_t d, int64_t h) {
  const int64_t columns = smaller(h, kHiddenBlock);
  const int64_t packed = larger(larger(packed_floats(m, d), packed_floats(m, columns)),
                                larger(packed_floats(columns, m), packed_floats(d, m)));
  const int64_t panels = parts_of(smaller(larger(m, larger(d, columns)), kBlockRows), kTileRows);
  return {
      m * columns, m * d, packed,
      panel_scratch(panels, parts_of(larger(d, columns), kTileColumns), 1, threads_worth(m, d, h))};
}

// Without columns of x nothing depends on its rows: every gradient is that of no rows.
int64_t rows_of(int64_t m, int64_t d) {
  return d == 0 ? 0 : m;
}

// One call on a team. Every thread of the team works through all of it.
template <class T>
class Backward {
 public:
  // `workspace` is what all threads share, `scratch` what this one has alone.
  Backward(const MlpBackward<T>& call, float* workspace, float* scratch, int threads, Team& team)
      : call_(call), team_(team), threads_(threads), scratch_(scratch) {
    const Sizes sizes = sizes_of(call.m, call.d, call.h);
    g_ = workspace;
    u_ = g_ + sizes.hidden;
    h_ = u_ + sizes.hidden;
    grad_x_ = h_ + sizes.hidden;
    packed_ = grad_x_ + sizes.grad_x;
  }

  void run() const {
    if (needs_hidden()) {
      int64_t first = 0;
      do {  // once without hidden columns, too: grad_x is 0 then
        run_block(first, smaller(call_.h - first, kHiddenBlock));
        first += kHiddenBlock;
      } while (first < call_.h);
    }
    if (call_.grad_x != nullptr) round_grad_x();
    sum_rows(call_.grad_y, call_.d, call_.grad_down_bias, 0);
  }

 private:
  bool needs_hidden() const {
    return call_.grad_x != nullptr || call_.grad_gate.wanted() || call_.grad_up.wanted() ||
           call_.grad_down.wanted() || call_.grad_gate_bias.wanted() || call_.grad_up_bias.wanted();
  }

  void run_block(int64_t first, int64_t columns) const {
    const int64_t m = call_.m;
    const int64_t d = call_.d;
    const auto x = by_rows(call_.x, d);
    const auto grad_y = by_rows(call_.grad_y, d);
    if (call_.gate_out == nullptr) {
      multiply<T, T, float>({x, by_rows(call_.gate + first * d, d), g_, columns, m, columns, d});
      multiply<T, T, float>({x, by_rows(call_.up + first * d, d), u_, columns, m, columns, d});
    }
    multiply<T, T, float>(
        {grad_y, by_columns(call_.down + first, call_.h), h_, columns, m, columns, d});
    differentiate(first, columns);

    const auto x_columns = by_columns(call_.x, d);
    const auto grad_y_columns = by_columns(call_.grad_y, d);
    const auto weight = [&]<class A, class B>(const Operand<A>& a, const Operand<B>& b,
                                              Gradient<T> to, int64_t at, int64_t stride,
                                              int64_t rows, int64_t width) {
      if (to.written != nullptr) multiply<A, B, T>({a, b, to.written + at, stride, rows, width, m});
      if (to.added != nullptr) {
        multiply<A, B, float>({a, b, to.added + at, stride, rows, width, m, true});
      }
    };
    weight(by_columns(g_, columns), x_columns, call_.grad_gate, first * d, d, columns, d);
    weight(by_columns(u_, columns), x_columns, call_.grad_up, first * d, d, columns, d);
    weight(grad_y_columns, by_columns(h_, columns), call_.grad_down, first, call_.h, d, columns);
    if (call_.grad_x != nullptr) {
      multiply<float, T, float>({by_rows(g_, columns), by_columns(call_.gate + first * d, d),
                                 grad_x_, d, m, d, columns, first > 0});
      multiply<float, T, float>({by_rows(u_, columns), by_columns(call_.up + first * d, d), grad_x_,
                                 d, m, d, columns, true});
    }
    sum_rows(g_, columns, call_.grad_gate_bias, first);
    sum_rows(u_, columns, call_.grad_up_bias, first);
  }

  // gate_out and up_out become their gradients, and the gradient of h becomes h.
  void differentiate(int64_t first, int64_t columns) const {
    team_.for_each_item(call_.m, [&](int64_t row) {
      with_gate(call_.gating.gate, [&]<Gate kGate>() {
        for (int64_t column = 0; column < columns; column += kLanes) {
          const int64_t left = columns - column;
          const int64_t at = row * columns + column;
          const int64_t hidden = first + column;
          const WithSlope activated =
              activate<kGate>(product(call_.gate_out, g_ + at, call_.gate_bias, row, hidden, left),
                              call_.gating.limit);
          const WithSlope multiplier = factor<kGate>(
              product(call_.up_out, u_ + at, call_.up_bias, row, hidden, left), call_.gating.limit);
          const Floats grad = load_up_to(h_ + at, left);
          store_up_to(g_ + at, grad * multiplier.value * activated.slope, left);
          store_up_to(u_ + at, grad * activated.value * multiplier.slope, left);
          store_up_to(h_ + at, activated.value * multiplier.value, left);
        }
      });
    });
  }

  // gate_out or up_out: as forward kept it, or from the sums computed here.
  Floats product(const T* kept, const float* sums, const T* bias, int64_t row, int64_t column,
                 int64_t left) const {
    if (kept != nullptr) return load_up_to(kept + row * call_.h + column, left);
    const Floats value = load_up_to(sums, left);
    return bias == nullptr ? value : value + load_up_to(bias + column, left);
  }

  template <class A, class B, class Out>
  void multiply(const Product<A, B, Out>& product) const {
    const int64_t k = product.k;
    for (int64_t row = 0; row < product.m; row += kBlockRows) {
      const int64_t rows = smaller(product.m - row, kBlockRows);
      team_.for_each_item(parts_of(rows, kTileRows), [&](int64_t panel) {
        product.a.template pack<kTileRows>(row + panel * kTileRows, product.m, 0, k,
                                           packed_ + panel * kTileRows * k);
      });
      multiply_panels<1>(
          team_, threads_, scratch_, packed_, rows, product.n, k,
          [&](int, int64_t column, int64_t from, int64_t count, float* to) {
            product.b.template pack<kTileColumns>(column, product.n, from, count, to);
          },
          [&](int64_t panel, int64_t column, const TileSums* sums) {
            product.write(sums[0], row + panel * kTileRows, column);
          });
    }
  }

  // The sum of the rows of from[m, columns], from element `first` of the gradient on. In runs, as
  // the products.
  template <class From>
  void sum_rows(const From* from, int64_t columns, Gradient<T> to, int64_t first) const {
    if (!to.wanted()) return;
    team_.for_each_item(parts_of(columns, kLanes), [&](int64_t item) {
      const int64_t column = item * kLanes;
      const int64_t left = columns - column;
      Floats sum = {};
      for (int64_t begin = 0; begin < call_.m; begin += kSumDepth) {
        const int64_t end = smaller(begin + kSumDepth, call_.m);
        Floats run = {};
        for (int64_t row = begin; row < end; ++row) {
          run += load_up_to(from + row * columns + column, left);
        }
        sum += run;
      }
      const int64_t at = first + column;
      if (to.written != nullptr) store_up_to(to.written + at, sum, left);
      if (to.added != nullptr) {
        store_up_to(to.added + at, load_up_to(to.added + at, left) + sum, left);
      }
    });
  }

  void round_grad_x() const {
    team_.for_each_item(call_.m, [&](int64_t row) {
      for (int64_t column = 0; column < call_.d; column += kLanes) {
        const int64_t at = row * call_.d + column;
        const int64_t left = call_.d - column;
        store_up_to(call_.grad_x + at, load_up_to(grad_x_ + at, left), left);
      }
    });
  }

  const MlpBackward<T>& call_;
  Team& team_;
  const int threads_;
  float* const scratch_;
  float* g_;  // of a block: gate's products with x, then their gradients
  float* u_;  // the same of up
  float* h_;  // the gradient of h, then h
  float* grad_x_;
  float* packed_;
};

}  // namespace

size_t mlp_backward_workspace_bytes(int64_t m, int64_t d, int64_t h) {
  m = rows_of(m, d);
  // Beyond this no tensors of such a shape exist, and the sums below would overflow.
  constexpr int64_t kMostExtent = int64_t{1} << 40;
  constexpr double kMostElements = 1e18;
  if (m > kMostExtent || d > kMostExtent || h > kMostExtent) return SIZE_MAX;
  if (static_cast<double>(m) * static_cast<double>(d) > kMostElements) return SIZE_MAX;
  const Sizes sizes = sizes_of(m, d, h);
  return 4 *
         static_cast<size_t>(sizes.scratch.all() + 3 * sizes.hidden + sizes.grad_x + sizes.packed);
}

template <class T>
void mlp_backward(const MlpBackward<T>& asked, void* workspace) {
  MlpBackward<T> call = asked;
  call.m = rows_of(asked.m, asked.d);
  const Sizes sizes = sizes_of(call.m, call.d, call.h);
  float* shared = static_cast<float*>(workspace) + sizes.scratch.all();
  const int threads =
      threads_for(threads_worth(call.m, call.d, call.h), sizes.scratch.threads, call.threads);
  int taken = 0;
  run_team(threads, [&](Team& team) {
    Backward<T>(call, shared, sizes.scratch.take(workspace, taken), threads, team).run();
  });
}

template void mlp_backward(const MlpBackward<float>&, void*);
template void mlp_backward(const MlpBackward<Bfloat16>&, void*);
template void mlp_backward(const MlpBackward<Float16>&, void*);

}  // namespace gated_mlp::cpu
