// SPDX-License-Identifier: Apache-2.0
#include "contenders.hpp"

#include <algorithm>
#include <cmath>

#include "numbers.hpp"
#include "reference.hpp"

namespace gated_mlp_bench {

using gated_mlp_test::Bytes;
using gated_mlp_test::repeated_normal;

namespace {

constexpr std::int64_t kRotatedBytes = 200 << 20;
constexpr std::int64_t kCheckedRows = 4;
constexpr std::int64_t kElement = 2;  // bytes of bfloat16 and float16

/// The data of set 0, again on the host: for the reference. Every set has the same numbers.
struct Host {
  Bytes x, weights, bias;
};

Host make_host(Shape shape, kiln::DType dtype) {
  const auto scale = [](std::int64_t k) { return 1.0 / std::sqrt(static_cast<double>(k)); };
  Bytes weights = repeated_normal(dtype, 2 * shape.h * shape.d, scale(shape.d), 2);
  const Bytes down = repeated_normal(dtype, shape.d * shape.h, scale(shape.h), 3);
  weights.insert(weights.end(), down.begin(), down.end());
  return {repeated_normal(dtype, shape.m * shape.d, 1.0, 1), std::move(weights),
          repeated_normal(dtype, shape.h, 1.0, 4)};
}

std::vector<std::int64_t> checked_rows(std::int64_t m) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < std::min(m, kCheckedRows); ++i) {
    rows.push_back(i * m / std::min(m, kCheckedRows));
  }
  return rows;
}

}  // namespace

struct Field::Set {
  Gpu::Buffer x, bias;
  Gpu::Buffer weights;  // gate [H, D], up [H, D], down [D, H], one after the other
  Gpu::Buffer wide;     // [M, 2H], or two of [M, H]
  Gpu::Buffer hidden;   // [M, H]
  Gpu::Buffer y;        // [M, D], or a Linear's [M, H]
  Gpu::Buffer workspace;
  std::unique_ptr<kiln::layers::GegluMlp> layer;
  kiln::Tensor x_view, y_view;

  const void* gate() const { return weights.data(); }
  const void* up(Shape shape) const {
    return static_cast<const char*>(gate()) + shape.h * shape.d * kElement;
  }
  const void* down(Shape shape) const {
    return static_cast<const char*>(gate()) + 2 * shape.h * shape.d * kElement;
  }
  void* second(Shape shape) const {
    return static_cast<char*>(wide.data()) + shape.m * shape.h * kElement;
  }
};

Field::Field(const Tools& tools, const kiln::Kernel& kernel, Shape shape, kiln::DType dtype,
             std::int64_t most_sets)
    : gpu_(tools.gpu), kernel_(kernel), shape_(shape), dtype_(dtype) {
  const std::int64_t read = kElement * (3 * shape.d * shape.h + shape.m * (shape.d + shape.h));
  const std::int64_t count =
      std::min(most_sets, 1 + kRotatedBytes / std::max<std::int64_t>(read, 1));
  const Host host = make_host(shape, dtype);
  const auto bytes = [](std::int64_t elements) {
    return static_cast<std::size_t>(elements * kElement);
  };
  const auto upload = [&](const Bytes& from) {
    Gpu::Buffer buffer(gpu_, from.size());
    buffer.upload(from.data(), from.size());
    return buffer;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    auto set = std::make_unique<Set>();
    set->x = upload(host.x);
    set->weights = upload(host.weights);
    set->bias = upload(host.bias);
    set->wide = Gpu::Buffer(gpu_, bytes(2 * shape.m * shape.h));
    set->hidden = Gpu::Buffer(gpu_, bytes(shape.m * shape.h));
    set->y = Gpu::Buffer(gpu_, bytes(shape.m * std::max(shape.d, shape.h)));
    const auto view = [&](const void* data, std::int64_t rows, std::int64_t columns) {
      return kiln::Tensor(const_cast<void*>(data), dtype, {rows, columns}, kernel.device());
    };
    set->layer = std::make_unique<kiln::layers::GegluMlp>(
        kernel, kiln::layers::GegluMlp::Weights{.gate = view(set->gate(), shape.h, shape.d),
                                                .up = view(set->up(shape), shape.h, shape.d),
                                                .down = view(set->down(shape), shape.d, shape.h)});
    set->x_view = view(set->x.data(), shape.m, shape.d);
    set->y_view = view(set->y.data(), shape.m, shape.d);
    set->workspace = Gpu::Buffer(gpu_, set->layer->workspace_bytes(set->x_view));
    sets_.push_back(std::move(set));
  }
  // Where sets are mostly activations, the weights of all of them might fit in the L2 cache.
  const bool decode = 10 * kElement * 3 * shape.d * shape.h >= 9 * read;
  if (tools.elementwise != nullptr && decode) add_read(*tools.elementwise);
  if (tools.cublaslt != nullptr) add_rivals(tools);
  add_kiln();
}

Field::~Field() = default;

void Field::add_read(const Elementwise& elementwise) {
  contenders_.push_back({&kReadWeights, [this, &elementwise](std::size_t i) {
                           const Set& s = *sets_[i];
                           elementwise.read(s.weights.data(), s.weights.size(), s.y.data());
                         }});
}

void Field::add_rivals(const Tools& tools) {
  const Shape shape = shape_;
  const std::int64_t d = shape.d;
  const std::int64_t h = shape.h;
  using Operands = CublasLt::Operands;
  const auto choose = [&](std::int64_t in, std::int64_t out,
                          const std::function<Operands(const Set&)>& operands,
                          const void* bias = nullptr) {
    std::vector<Operands> rotated;
    for (const auto& set : sets_) rotated.push_back(operands(*set));
    gemms_.push_back(tools.cublaslt->choose(
        {.rows = shape.m, .in = in, .out = out, .dtype = dtype_, .bias = bias}, rotated));
    return gemms_.size() - 1;
  };
  const auto up_front = [](const Set& s) { return Operands{s.x.data(), s.gate(), s.wide.data()}; };
  const std::size_t narrow = choose(d, h, up_front);
  const std::size_t biased = choose(d, h, up_front, sets_.front()->bias.data());
  const std::size_t both = choose(d, 2 * h, up_front);
  const std::size_t down = choose(h, d, [&](const Set& s) {
    return Operands{s.hidden.data(), s.down(shape), s.y.data()};
  });

  contenders_.push_back({&kLinear, [=, this](std::size_t i) {
                           const Set& s = *sets_[i];
                           gemms_[narrow].run({s.x.data(), s.gate(), s.y.data()});
                         }});
  contenders_.push_back({&kBiasedLinear, [=, this](std::size_t i) {
                           const Set& s = *sets_[i];
                           gemms_[biased].run({s.x.data(), s.gate(), s.y.data()});
                         }});
  const auto gate_and_up = [=, this](const Set& s) {
    gemms_[narrow].run({s.x.data(), s.gate(), s.wide.data()});
    gemms_[narrow].run({s.x.data(), s.up(shape), s.second(shape)});
  };
  const auto project_down = [=, this](const Set& s) {
    gemms_[down].run({s.hidden.data(), s.down(shape), s.y.data()});
  };
  if (const Elementwise* const elementwise = tools.elementwise; elementwise != nullptr) {
    contenders_.push_back({&kEager, [=, this](std::size_t i) {
                             const Set& s = *sets_[i];
                             const std::int64_t count = shape.m * shape.h;
                             gemms_[narrow].run({s.x.data(), s.gate(), s.wide.data()});
                             elementwise->gelu(s.wide.data(), s.hidden.data(), count);
                             gemms_[narrow].run({s.x.data(), s.up(shape), s.second(shape)});
                             elementwise->multiply(s.hidden.data(), s.second(shape),
                                                   s.hidden.data(), count);
                             project_down(s);
                           }});
  }
  const auto geglu = std::make_shared<kiln::layers::Geglu>(kernel_, kiln::layers::Geglu::Weights{});
  const auto pointwise = [=, this](const kiln::Tensor& gate, const kiln::Tensor& up, const Set& s) {
    geglu->forward(gate, up,
                   kiln::Tensor(s.hidden.data(), dtype_, {shape.m, shape.h}, kernel_.device()),
                   kiln::Stream::of_handle(gpu_.stream()));
  };
  contenders_.push_back(
      {&kFusedPointwise, [=, this](std::size_t i) {
         const Set& s = *sets_[i];
         const kiln::Device device = kernel_.device();
         gate_and_up(s);
         pointwise(kiln::Tensor(s.wide.data(), dtype_, {shape.m, shape.h}, device),
                   kiln::Tensor(s.second(shape), dtype_, {shape.m, shape.h}, device), s);
         project_down(s);
       }});
  contenders_.push_back(
      {&kConcatenated, [=, this](std::size_t i) {
         const Set& s = *sets_[i];
         const kiln::Tensor wide(s.wide.data(), dtype_, {shape.m, 2 * shape.h}, kernel_.device());
         gemms_[both].run({s.x.data(), s.gate(), s.wide.data()});
         pointwise(wide.columns(0, shape.h), wide.columns(shape.h, shape.h), s);
         project_down(s);
       }});
}

void Field::add_kiln() {
  contenders_.push_back({&kKiln, [this](std::size_t i) {
                           Set& s = *sets_[i];
                           s.layer->forward(s.x_view, s.y_view,
                                            {s.workspace.data(), s.workspace.size()},
                                            kiln::Stream::of_handle(gpu_.stream()));
                         }});
}

const std::vector<double>& Field::exact(Result result) {
  std::vector<double>& exact = exact_[result];
  if (!exact.empty()) return exact;
  const std::int64_t d = shape_.d;
  const std::int64_t h = shape_.h;
  const Host host = make_host(shape_, dtype_);
  const std::vector<std::int64_t> rows = checked_rows(shape_.m);
  const std::vector<double> weights = gated_mlp_test::decode_all(dtype_, host.weights);
  const std::vector<double> x = gated_mlp_test::decode_all(dtype_, host.x);
  const auto up = weights.begin() + h * d;
  const auto down = up + h * d;
  if (result == Result::kMlp) {
    exact = gated_mlp_test::mlp_reference({.x = x,
                                           .gate = {weights.begin(), up},
                                           .up = {up, down},
                                           .down = {down, weights.end()},
                                           .gate_bias = {},
                                           .up_bias = {},
                                           .down_bias = {},
                                           .d = d,
                                           .h = h},
                                          rows)
                .y;
    return exact;
  }
  const std::vector<double> bias = gated_mlp_test::decode_all(dtype_, host.bias);
  exact.resize(rows.size() * static_cast<std::size_t>(h));
  gated_mlp_test::parallel_for(static_cast<std::int64_t>(exact.size()), [&](std::int64_t at) {
    const std::int64_t column = at % h;
    double sum = result == Result::kBiasedLinear ? bias[static_cast<std::size_t>(column)] : 0.0;
    for (std::int64_t k = 0; k < d; ++k) {
      sum += x[static_cast<std::size_t>(rows[static_cast<std::size_t>(at / h)] * d + k)] *
             weights[static_cast<std::size_t>(column * d + k)];
    }
    exact[static_cast<std::size_t>(at)] = sum;
  });
  return exact;
}

double Field::error_of(const Contender& contender) {
  if (contender.way->result == Result::kNothing) return 0;
  const auto [m, d, h] = shape_;
  Set& set = *sets_.front();
  set.y.fill(0xff);
  contender.run(0);
  const std::int64_t width = contender.way->result == Result::kMlp ? d : h;
  Bytes result(static_cast<std::size_t>(m * width * kElement));
  set.y.download(result.data(), result.size());

  const std::vector<double>& expected = exact(contender.way->result);
  const std::vector<std::int64_t> rows = checked_rows(m);
  double difference = 0;
  double size = 0;
  for (std::size_t at = 0; at < expected.size(); ++at) {
    const std::int64_t row = rows[at / static_cast<std::size_t>(width)];
    const std::int64_t column = static_cast<std::int64_t>(at) % width;
    const double found = gated_mlp_test::decode(
        dtype_, &result[static_cast<std::size_t>((row * width + column) * kElement)]);
    difference += (found - expected[at]) * (found - expected[at]);
    size += expected[at] * expected[at];
  }
  return std::sqrt(difference / size);
}

double Field::operations(Result result) const {
  if (result == Result::kNothing) return 0;
  return (result == Result::kMlp ? 6.0 : 2.0) * static_cast<double>(shape_.m) *
         static_cast<double>(shape_.d) * static_cast<double>(shape_.h);
}

double Field::least_bytes(Result result) const {
  const auto m = static_cast<double>(shape_.m);
  const auto d = static_cast<double>(shape_.d);
  const auto h = static_cast<double>(shape_.h);
  const auto bytes = [](double elements) { return elements * static_cast<double>(kElement); };
  if (result == Result::kNothing) return bytes(3 * d * h);
  return bytes(result == Result::kMlp ? 3 * d * h + 2 * m * d : d * h + m * d + m * h);
}

}  // namespace gated_mlp_bench
