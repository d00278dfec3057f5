// SPDX-License-Identifier: Apache-2.0
//
// The elementwise ops against the double reference, on compact tensors, on the two halves of packed
// ones and on rows with odd strides; that no finite gate, however large, makes a NaN; and that
// neither calls in a row nor large tensors change a bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

#include "check.hpp"
#include "host/plan.h"
#include "numbers.hpp"
#include "reference.hpp"

namespace gated_mlp_test {
namespace {

enum class Layout { kCompact, kPacked, kOddStride };

/// [m, h] inside a buffer [m, stride], from column `offset` on.
struct Placed {
  std::int64_t m, h, stride, offset;
  std::size_t at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * stride + offset + column);
  }
};

struct Operand {
  Placed place;
  std::vector<double> values;  // of an input's whole buffer
  Guarded buffer;

  Operand(Memory& memory, kiln::DType dtype, Placed where, const Bytes& bytes)
      : place(where), values(decode_all(dtype, bytes)), buffer(memory, bytes) {}
  Operand(Memory& memory, kiln::DType dtype, Placed where)
      : place(where),
        buffer(memory, static_cast<std::size_t>(where.m * where.stride) * kiln::size_of(dtype)) {}
  double value(std::int64_t row, std::int64_t column) const {
    return values[place.at(row, column)];
  }
  kiln::Tensor tensor(kiln::DType dtype, kiln::Device device) const {
    return kiln::Tensor(buffer.data(), dtype, {place.m, place.stride}, device)
        .columns(place.offset, place.h);
  }
};

Placed placed(Layout layout, std::int64_t m, std::int64_t h, int half) {
  switch (layout) {
    case Layout::kPacked:
      return {m, h, 2 * h, half * h};
    case Layout::kOddStride:
      return {m, h, h + 3, 1};
    case Layout::kCompact:
      break;
  }
  return {m, h, h, 0};
}

struct Expected {
  const Operand& output;
  std::vector<double> values;         // [m, h]
  std::vector<double> natural_sizes;  // if nothing cancelled: errors are measured against these
};

/// Relative L2 error; infinite if a value is a NaN or anything but the tensor was written.
double error_of(kiln::DType dtype, const Expected& expected) {
  const Placed& place = expected.output.place;
  // float16 rounds what is below 2^-14 to a fixed grid: half a step of it is no error.
  const double least_step = dtype == kiln::DType::kFloat16 ? std::ldexp(1.0, -25) : 0.0;
  const std::vector<double> found = decode_all(dtype, expected.output.buffer.read());
  std::vector<bool> inside(found.size());
  double difference = 0;
  double size = 0;
  for (std::int64_t row = 0; row < place.m; ++row) {
    for (std::int64_t column = 0; column < place.h; ++column) {
      const double want = expected.values[static_cast<std::size_t>(row * place.h + column)];
      const double got = found[place.at(row, column)];
      inside[place.at(row, column)] = true;
      const double error = std::abs(got - want) - least_step;
      difference += error < 0 ? 0 : error * error;  // a NaN goes into the sum
      const double natural =
          expected.natural_sizes[static_cast<std::size_t>(row * place.h + column)];
      size += natural * natural;
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!inside[i] && !std::isnan(found[i])) return INFINITY;  // the poison between rows
  }
  if (std::isnan(difference)) return INFINITY;
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

struct PointwiseCase {
  std::int64_t m, h;
  kiln::DType dtype;
  Layout layout;
  Gate gate;
};

std::string describe(const PointwiseCase& test) {
  const char* layout = test.layout == Layout::kCompact  ? "compact"
                       : test.layout == Layout::kPacked ? "packed"
                                                        : "odd stride";
  return "gated M=" + std::to_string(test.m) + " H=" + std::to_string(test.h) + " " +
         name_of(test.dtype) + " " + name_of(test.gate) + " " + layout;
}

void check_case(Variant& variant, const PointwiseCase& test, std::mt19937_64& random) {
  const kiln::DType dtype = test.dtype;
  const kiln::Device device = variant.kernel.device();
  const auto operand = [&](int half, double deviation) {
    const Placed place = placed(test.layout, test.m, test.h, half);
    return Operand(variant.memory, dtype, place,
                   random_normal(dtype, place.m * place.stride, deviation, random));
  };
  const auto output = [&](int half) {
    return Operand(variant.memory, dtype, placed(test.layout, test.m, test.h, half));
  };
  const Operand gate = operand(0, 2.0);
  const Operand up = operand(1, 1.0);
  const Operand grad = operand(0, 1.0);
  const Operand out = output(0);
  const Operand grad_gate = output(0);
  const Operand grad_up = output(1);
  const GatedLayer layer = variant.package.gated(variant.kernel, test.gate);
  layer.forward(gate.tensor(dtype, device), up.tensor(dtype, device), out.tensor(dtype, device),
                nullptr);
  layer.backward(grad.tensor(dtype, device), gate.tensor(dtype, device), up.tensor(dtype, device),
                 grad_gate.tensor(dtype, device), grad_up.tensor(dtype, device), nullptr);
  variant.memory.synchronize();

  const std::vector<double> none(static_cast<std::size_t>(test.m * test.h));
  std::array<Expected, 3> expected = {Expected{out, none, none}, Expected{grad_gate, none, none},
                                      Expected{grad_up, none, none}};
  parallel_for(test.m, [&](std::int64_t row) {
    for (std::int64_t column = 0; column < test.h; ++column) {
      const double x = gate.value(row, column);
      const double g = grad.value(row, column);
      const double u = up.value(row, column);
      const double activated = activate(test.gate, x);
      const Slope slope = activation_slope(test.gate, x);
      const double multiplier = factor(test.gate, u);
      const double product = g * multiplier;
      const auto set = [&](Expected& to, double value, double natural_size) {
        const auto at = static_cast<std::size_t>(row * test.h + column);
        to.values[at] = value;
        to.natural_sizes[at] = natural_size;
      };
      set(expected[0], activated * multiplier, activated * multiplier);
      set(expected[1], product * slope.value, product * slope.natural_size);
      const double of_up = g * activated * factor_slope(test.gate, u);
      set(expected[2], of_up, of_up);
    }
  });
  const bool large = test.m * test.h >= 1024;
  const double bound = bound_of(dtype) * (large ? 1 : 2);
  double worst = 0;
  bool intact = gate.buffer.unchanged() && up.buffer.unchanged() && grad.buffer.unchanged();
  for (const Operand* one : {&gate, &up, &grad, &out, &grad_gate, &grad_up}) {
    intact = intact && one->buffer.guards_intact();
  }
  for (const Expected& one : expected) worst = std::max(worst, error_of(dtype, one));
  if (large && worst <= bound) {
    double& recorded = variant.tally.worst[name_of(dtype)];
    recorded = std::max(recorded, worst);
  }
  char numbers[96];
  std::snprintf(numbers, sizeof(numbers), ": error %.3g, at most %.3g%s", worst, bound,
                intact ? "" : "; wrote outside its outputs");
  report(variant, worst <= bound && intact, describe(test) + numbers);
}

/// Every finite gate from tiny to the largest: outputs and gradients are numbers, and saturate.
void check_extremes(Variant& variant, kiln::DType dtype, Gate activation) {
  const double most = dtype == kiln::DType::kFloat16 ? 60000.0 : 3e38;
  const std::size_t size = kiln::size_of(dtype);
  constexpr std::int64_t kCount = 512;
  Bytes gates(kCount * size);
  Bytes ones(kCount * size);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double exponent = static_cast<double>(i) / kCount;
    const double value = 1e-4 * std::pow(most / 1e-4, exponent);
    const auto at = static_cast<std::size_t>(i) * size;
    encode(dtype, i % 2 == 0 ? value : -value, &gates[at]);
    encode(dtype, 1.0, &ones[at]);
  }
  const Placed place = {1, kCount, kCount, 0};
  const kiln::Device device = variant.kernel.device();
  const Operand gate(variant.memory, dtype, place, gates);
  const Operand one(variant.memory, dtype, place, ones);
  const Operand out(variant.memory, dtype, place);
  const Operand grad_gate(variant.memory, dtype, place);
  const Operand grad_up(variant.memory, dtype, place);
  const auto tensor = [&](const Operand& operand) { return operand.tensor(dtype, device); };
  const GatedLayer layer = variant.package.gated(variant.kernel, activation);
  layer.forward(tensor(gate), tensor(one), tensor(out), nullptr);
  layer.backward(tensor(one), tensor(gate), tensor(one), tensor(grad_gate), tensor(grad_up),
                 nullptr);
  variant.memory.synchronize();
  const std::vector<double> y = decode_all(dtype, out.buffer.read());
  const std::vector<double> slope = decode_all(dtype, grad_gate.buffer.read());
  const std::vector<double> activated = decode_all(dtype, grad_up.buffer.read());
  const double tolerance = dtype == kiln::DType::kFloat32 ? 2e-6 : 8e-3;
  const double multiplier = factor(activation, 1.0);
  int wrong = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = gate.values[i];
    const double expected = activate(activation, x);
    const double allowed =
        tolerance * std::max(std::abs(expected), std::min(std::abs(x), 1.0)) + 1e-7;
    const double expected_slope = activation_slope(activation, x).value;
    const bool right =
        std::abs(y[i] - expected * multiplier) <= multiplier * allowed &&
        std::abs(activated[i] - expected) <= allowed &&
        std::abs(slope[i] - expected_slope * multiplier) <= 2 * multiplier * tolerance;
    wrong += right ? 0 : 1;  // a NaN compares false
  }
  report(variant, wrong == 0,
         "gated " + name_of(dtype) + " " + name_of(activation) + ": " + std::to_string(wrong) +
             " of 512 gates up to the largest finite one are wrong");
}

/// Calls on each other's outputs give the same bits without pauses between as with them. The inputs
/// change from round to round, so that what a round before it left behind is not right by chance.
void check_in_a_row(Variant& variant, kiln::DType dtype, std::mt19937_64& random) {
  constexpr std::size_t kRounds = 9;
  const Placed place = placed(Layout::kCompact, 300, 4096, 0);
  const auto input = [&] {
    return Operand(variant.memory, dtype, place,
                   random_normal(dtype, place.m * place.stride, 2.0, random));
  };
  const std::array<Operand, 2> inputs = {input(), input()};
  const Operand once(variant.memory, dtype, place);
  const Operand twice(variant.memory, dtype, place);
  const Operand grad_once(variant.memory, dtype, place);
  const Operand grad_input(variant.memory, dtype, place);
  const GatedLayer layer = variant.package.gated(variant.kernel, variant.package.gates.front());
  const auto result = [&](const std::function<void()>& after_each) {
    const auto tensor = [&](const Operand& one) {
      return one.tensor(dtype, variant.kernel.device());
    };
    for (std::size_t i = 0; i < kRounds; ++i) {
      const kiln::Tensor x = tensor(inputs[i % 2]);
      layer.forward(x, x, tensor(once), nullptr);
      after_each();
      layer.forward(tensor(once), x, tensor(twice), nullptr);
      after_each();
      layer.backward(tensor(twice), tensor(once), x, tensor(grad_once), tensor(grad_input),
                     nullptr);
      after_each();
    }
    variant.memory.synchronize();
    return std::pair(grad_once.buffer.read(), grad_input.buffer.read());
  };
  const auto paused = result([&] { variant.memory.synchronize(); });
  report(variant, result([] {}) == paused,
         "gated " + name_of(dtype) + ": calls in a row are not as with pauses between");
}

constexpr std::int64_t kColumns = 8192;  // of large tensors

/// The same bits as of their parts, forward and backward.
void check_parts(Variant& variant, kiln::DType dtype, std::int64_t parts, std::int64_t part_rows,
                 std::mt19937_64& random) {
  const auto size = static_cast<std::int64_t>(kiln::size_of(dtype));
  const std::int64_t all_rows = parts * part_rows;
  const auto input = [&] { return repeated_normal(dtype, all_rows * kColumns, 2.0, random()); };
  const Guarded gate(variant.memory, input());
  const Guarded up(variant.memory, input());
  std::array<Guarded, 3> outputs = {Guarded(variant.memory, gate.bytes()),
                                    Guarded(variant.memory, gate.bytes()),
                                    Guarded(variant.memory, gate.bytes())};
  const GatedLayer layer = variant.package.gated(variant.kernel, variant.package.gates.front());
  const auto run = [&](std::int64_t row, std::int64_t rows) {
    const auto tensor = [&](const Guarded& buffer) {
      unsigned char* const begin =
          static_cast<unsigned char*>(buffer.data()) + row * kColumns * size;
      return kiln::Tensor(begin, dtype, {rows, kColumns}, variant.kernel.device());
    };
    layer.forward(tensor(gate), tensor(up), tensor(outputs[0]), nullptr);
    layer.backward(tensor(outputs[0]), tensor(gate), tensor(up), tensor(outputs[1]),
                   tensor(outputs[2]), nullptr);
  };
  run(0, all_rows);
  variant.memory.synchronize();
  std::array<Bytes, 3> whole;
  bool right = true;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    whole[i] = outputs[i].read();
    right = right && outputs[i].guards_intact();
    outputs[i].poison();
  }
  for (std::int64_t i = 0; i < parts; ++i) run(i * part_rows, part_rows);
  variant.memory.synchronize();
  for (std::size_t i = 0; i < outputs.size(); ++i) right = right && outputs[i].read() == whole[i];
  report(variant, right,
         "gated " + name_of(dtype) + " M=" + std::to_string(all_rows) +
             " H=" + std::to_string(kColumns) + ": a large tensor is not as its parts");
}

/// Larger than the L2 cache: plan.h stores them otherwise.
void check_larger_than_the_cache(Variant& variant, kiln::DType dtype, std::mt19937_64& random) {
  constexpr std::int64_t kRows = 1024;
  const auto size = static_cast<std::int64_t>(kiln::size_of(dtype));
  const std::int64_t parts = gated_mlp::kMostCacheBytes / (kRows * kColumns * size) + 1;
  check_parts(variant, dtype, parts, kRows, random);
}

struct Extent {
  std::int64_t m, h;
};

/// What large extents are for, how rows are shared out and laid out, is the same code for every
/// gate: in a test suite each has one gate. There are more of them than gates, one after the other.
bool is_large(const Extent& extent) {
  return extent.m * extent.h >= 1 << 18;
}

}  // namespace

void check_huge_pointwise(Variant& variant, const Options& options) {
  std::mt19937_64 random(options.seed + 4);
  check_parts(variant, kiln::DType::kBFloat16, 2, (1 << 17) + 1024, random);
}

void check_pointwise(std::vector<Variant>& variants, const Options& options) {
  std::vector<Extent> extents = {{0, 8}, {8, 0}, {1, 1}, {3, 5}, {7, 64}, {33, 257}};
  std::mt19937_64 random(options.seed + 1);
  if (!options.light) {
    // 1004 columns, packed: rows aligned to 8 bytes only. Of the last, the rows with gaps are more
    // than a CUDA grid has in y.
    extents.insert(extents.end(),
                   {{1, 14336}, {512, 1024}, {5, 70001}, {517, 1000}, {517, 1004}, {70000, 8}});
    while (extents.size() < (options.brief ? 18 : 43)) {
      extents.push_back({static_cast<std::int64_t>(1 + random() % 200),
                         static_cast<std::int64_t>(1 + random() % 700)});
    }
  }
  for (Variant& variant : variants) {
    for (const kiln::DType dtype :
         {kiln::DType::kFloat32, kiln::DType::kBFloat16, kiln::DType::kFloat16}) {
      check_in_a_row(variant, dtype, random);
      if (variant.memory.is_gpu() && !options.light) {
        check_larger_than_the_cache(variant, dtype, random);
      }
      const std::vector<Gate>& gates = variant.package.gates;
      for (std::size_t g = 0; g < gates.size(); ++g) {
        const Gate gate = gates[g];
        check_extremes(variant, dtype, gate);
        for (std::size_t i = 0; i < extents.size(); ++i) {
          const Extent extent = extents[i];
          if (options.brief && is_large(extent) && i % gates.size() != g) continue;
          for (const Layout layout : {Layout::kCompact, Layout::kPacked, Layout::kOddStride}) {
            const PointwiseCase test = {extent.m, extent.h, dtype, layout, gate};
            try {
              check_case(variant, test, random);
            } catch (const std::exception& error) {
              report(variant, false, describe(test) + ": " + error.what());
            }
          }
        }
      }
    }
  }
}

}  // namespace gated_mlp_test
