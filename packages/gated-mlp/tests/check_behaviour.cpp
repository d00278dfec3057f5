// SPDX-License-Identifier: Apache-2.0
//
// What forward promises beyond its numbers: the same bits each time, from any thread and stream and
// from a graph; a NaN stays in its row; a wrong call is refused with a text that names the cause.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "check.hpp"

namespace gated_mlp_test {
namespace {

Bytes run_once(const Variant& variant, MlpBuffers& buffers, void* stream = nullptr) {
  buffers.poison();
  buffers.run(stream);
  variant.memory.synchronize();
  return buffers.read_y();
}

std::vector<Shape> shapes(const Options& options, bool gpu) {
  std::vector<Shape> shapes = {{70, 40, 72}, {5, 24, 40}};
  if (gpu) shapes.push_back({600, 136, 264});  // prefill kernels
  if (options.light) return shapes;
  shapes.insert(shapes.end(), {{1, 512, 1024}, {300, 264, 520}, {129, 127, 65}});
  if (gpu) {  // and a decode shape whose k is split, a larger one, and ragged prefill
    shapes.insert(shapes.end(),
                  {{16, 776, 1032}, {200, 776, 1032}, {1100, 264, 1032}, {1500, 520, 2056}});
  }
  return shapes;
}

std::vector<Shape> invariant_shapes(const Options& options, bool gpu) {
  if (options.light) return {{140, 40, 72}};
  if (gpu) return {{2100, 264, 1032}, {1000, 1464, 1848}, {140, 127, 65}};
  return {{600, 136, 264}, {140, 127, 65}};
}

void check_repeats(Variant& variant, const MlpData& data, const std::string& text, int repeats) {
  MlpBuffers buffers(variant, data, variant.package.gates.front());
  const Bytes first = run_once(variant, buffers);
  int different = 0;
  for (int i = 0; i < repeats; ++i) different += run_once(variant, buffers) == first ? 0 : 1;
  report(variant, different == 0,
         text + ": " + std::to_string(different) + " of " + std::to_string(repeats) +
             " more runs give other bits");
}

/// The data with a NaN in an odd and in an even row of x, and infinity in its last row; and of a
/// residual with a NaN in the first row, and infinity in the last one.
struct Dirty {
  explicit Dirty(const MlpData& clean) : data(clean) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    const auto m = static_cast<std::size_t>(clean.shape.m);
    nan_rows = {1, m / 4 * 2};
    infinite_row = m - 1;
    for (const std::size_t row : nan_rows) fill(data.x, row, nan);
    fill(data.x, infinite_row, infinity);
    if (!data.has_residual) return;
    fill(data.residual, 0, nan);
    fill(data.residual, infinite_row, infinity);
    nan_rows.push_back(0);
  }
  void fill(Bytes& matrix, std::size_t row, double value) const {
    const std::size_t size = kiln::size_of(data.dtype);
    const auto d = static_cast<std::size_t>(data.shape.d);
    for (std::size_t column = 0; column < d; ++column) {
      encode(data.dtype, value, &matrix[(row * d + column) * size]);
    }
  }
  bool is_nan(std::size_t row) const {
    return std::find(nan_rows.begin(), nan_rows.end(), row) != nan_rows.end();
  }

  MlpData data;
  std::vector<std::size_t> nan_rows;
  std::size_t infinite_row = 0;
};

/// A batch-invariant call of some rows gives the bits that they have in a call of all.
void check_batch_invariance(Variant& variant, kiln::DType dtype, const Shape& shape,
                            std::uint64_t seed) {
  MlpData data = random_mlp(shape, dtype, true, seed);
  add_residual(data, seed + 1);
  data.invariant = true;
  MlpBuffers whole_buffers(variant, data, variant.package.gates.front());
  const Bytes whole = run_once(variant, whole_buffers);
  const std::int64_t row_bytes = shape.d * static_cast<std::int64_t>(kiln::size_of(dtype));
  for (const RowRange& range : row_ranges(shape.m)) {
    const MlpData part = rows_of(data, range.first, range.count);
    MlpBuffers buffers(variant, part, variant.package.gates.front());
    const Bytes found = run_once(variant, buffers);
    report(variant, std::equal(found.begin(), found.end(), whole.begin() + range.first * row_bytes),
           "D=" + std::to_string(shape.d) + " H=" + std::to_string(shape.h) + " " + name_of(dtype) +
               ": rows " + std::to_string(range.first) + " to " +
               std::to_string(range.first + range.count) + " of " + std::to_string(shape.m) +
               " give other bits in a batch-invariant call of their own");
  }
}

void check_graph(Variant& variant, const MlpData& data, const std::string& text) {
  MlpBuffers buffers(variant, data, variant.package.gates.back());
  const Bytes direct = run_once(variant, buffers);
  buffers.poison();
  void* stream = variant.memory.make_stream();
  variant.memory.replay(stream, 3, [&] { buffers.run(stream); });
  variant.memory.synchronize();
  variant.memory.release_stream(stream);
  report(variant, buffers.read_y() == direct, text + ": a replayed graph gives other bits");
  const std::string damage = buffers.damage();
  report(variant, damage.empty(), text + ": graph replay" + damage);
}

/// Kernels may start before the one ahead of them ends: nothing may be read before it was written,
/// nor written while it is still read. `enqueue` gets a stream and what to do after each step.
using Steps = std::function<void(MlpBuffers&, void*, const std::function<void()>&)>;
void check_without_pauses(Variant& variant, const MlpData& data, const std::string& text,
                          const Steps& enqueue) {
  Memory& memory = variant.memory;
  MlpBuffers apart(variant, data, variant.package.gates.front());
  enqueue(apart, nullptr, [&memory] { memory.synchronize(); });
  const Bytes expected = apart.read_y();
  void* stream = memory.make_stream();
  for (const bool captured : {false, true}) {
    MlpBuffers close(variant, data, variant.package.gates.front());
    const auto steps = [&] { enqueue(close, stream, [] {}); };
    if (captured) {
      memory.replay(stream, 1, steps);
    } else {
      steps();
    }
    memory.synchronize();
    report(variant, close.read_y() == expected,
           text + (captured ? ", from a graph" : "") + ", give other bits than with pauses");
  }
  memory.release_stream(stream);
}

void check_order(Variant& variant, const MlpData& data, const std::string& text) {
  constexpr int kCalls = 7;  // odd: the last one writes y
  check_without_pauses(
      variant, data, text + ": calls on each other's outputs",
      [](MlpBuffers& buffers, void* stream, const std::function<void()>& after_each) {
        buffers.run_chain(kCalls, stream, after_each);
      });
  check_without_pauses(
      variant, data, text + ": calls that add to each other's outputs",
      [](MlpBuffers& buffers, void* stream, const std::function<void()>& after_each) {
        buffers.run_sum(kCalls, stream, after_each);
      });
  const GatedLayer gated = variant.package.gated(variant.kernel, variant.package.gates.front());
  const MlpBuffers source(variant, data, variant.package.gates.front());
  for (const int last : {0, 1, 2, 3, 4}) {
    check_without_pauses(
        variant, data, text + ": inputs just written, number " + std::to_string(last) + " last",
        [&](MlpBuffers& buffers, void* stream, const std::function<void()>& after_each) {
          buffers.run(stream);
          buffers.derive_inputs(gated, source, last, stream);
          after_each();
          buffers.run(stream);
          after_each();
        });
  }
}

/// Two threads with a stream and buffers each, over and over.
void check_threads(Variant& variant, const MlpData& first, const MlpData& second,
                   const std::string& text) {
  MlpBuffers buffers_first(variant, first, variant.package.gates.front());
  MlpBuffers buffers_second(variant, second, variant.package.gates.back());
  const Bytes expected_first = run_once(variant, buffers_first);
  const Bytes expected_second = run_once(variant, buffers_second);
  buffers_first.poison();
  buffers_second.poison();
  void* stream_first = variant.memory.make_stream();
  void* stream_second = variant.memory.make_stream();
  std::string failure;
  const auto work = [&failure](const MlpBuffers& buffers, void* stream) {
    try {
      for (int i = 0; i < 8; ++i) buffers.run(stream);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  std::thread other([&] { work(buffers_second, stream_second); });
  work(buffers_first, stream_first);
  other.join();
  variant.memory.synchronize();
  variant.memory.release_stream(stream_first);
  variant.memory.release_stream(stream_second);
  report(variant,
         failure.empty() && buffers_first.read_y() == expected_first &&
             buffers_second.read_y() == expected_second,
         text + ": two threads at once give other bits " + failure);
}

/// A child that forked after the library was loaded computes too (CPU only: CUDA does not fork).
void check_fork(Variant& variant, const MlpData& data, const std::string& text) {
  MlpBuffers buffers(variant, data, variant.package.gates.front());
  const Bytes expected = run_once(variant, buffers);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang is a failure, too
    _exit(run_once(variant, buffers) == expected ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  report(variant, WIFEXITED(status) && WEXITSTATUS(status) == 0,
         text + ": a forked child failed or gave other bits");
}

void check_refused(Variant& variant, const std::string& what, const std::string& word,
                   const std::function<void()>& call) {
  try {
    call();
    report(variant, false, what + " was not refused");
  } catch (const kiln::Error& error) {
    const std::string text = error.what();
    report(variant,
           error.code() == kiln::ErrorCode::kInvalidCall && text.find(word) != std::string::npos,
           what + ": the error does not say '" + word + "': " + text);
  }
}

void check_refusals(Variant& variant) {
  const kiln::Device device = variant.kernel.device();
  const auto tensor = [&](std::initializer_list<std::int64_t> shape,
                          kiln::DType dtype = kiln::DType::kBFloat16) {
    return kiln::Tensor(nullptr, dtype, shape, device);
  };
  const auto make_layer = [&](const MlpWeights& weights) {
    return variant.package.mlp(variant.kernel, weights, variant.package.gates.front());
  };
  check_refused(variant, "an up weight of another width", "up has shape", [&] {
    make_layer({.gate = tensor({16, 8}), .up = tensor({16, 7}), .down = tensor({8, 16})});
  });
  check_refused(variant, "a down weight of another dtype", "down", [&] {
    make_layer({.gate = tensor({16, 8}),
                .up = tensor({16, 8}),
                .down = tensor({8, 16}, kiln::DType::kFloat16)});
  });
  for (const Refusal& refusal : variant.package.refusals) {
    check_refused(variant, refusal.what, refusal.word, [&] { refusal.call(variant.kernel); });
  }
  const MlpData data = random_mlp({4, 8, 16}, kiln::DType::kBFloat16, false, 1);
  const Guarded memory(variant.memory, data.x);
  const kiln::Tensor x(memory.data(), kiln::DType::kBFloat16, {4, 8}, device);
  const kiln::Tensor gate(memory.data(), kiln::DType::kBFloat16, {16, 8}, device);
  const kiln::Tensor down(memory.data(), kiln::DType::kBFloat16, {8, 16}, device);
  const MlpLayer layer = make_layer({.gate = gate, .up = gate, .down = down});
  const Guarded other(variant.memory, data.x);
  const kiln::Tensor y(other.data(), kiln::DType::kBFloat16, {4, 8}, device);
  check_refused(variant, "no workspace", "workspace",
                [&] { layer.forward({x}, y, kiln::Workspace{}, nullptr); });
  check_refused(variant, "a y in the place of x", "y overlaps x; expected memory of its own", [&] {
    const Guarded workspace(variant.memory, layer.workspace_bytes(x));
    layer.forward({x}, x, {workspace.data(), workspace.bytes()}, nullptr);
  });
  check_refused(variant, "a y across the residual", "y overlaps residual; expected the same place",
                [&] {
                  const Guarded workspace(variant.memory, layer.workspace_bytes(x));
                  const kiln::Tensor part(other.data(), kiln::DType::kBFloat16, {2, 8}, device);
                  const kiln::Tensor next(static_cast<char*>(other.data()) + 16,
                                          kiln::DType::kBFloat16, {2, 8}, device);
                  const kiln::Tensor rows(memory.data(), kiln::DType::kBFloat16, {2, 8}, device);
                  layer.forward({rows, part}, next, {workspace.data(), workspace.bytes()}, nullptr);
                });
  check_refused(variant, "gate_out without up_out", "up_out is missing", [&] {
    const MlpKept half = {.gate_out =
                              kiln::Tensor(memory.data(), kiln::DType::kBFloat16, {4, 16}, device)};
    const Guarded workspace(variant.memory, layer.backward_workspace_bytes(x, x, half, {}));
    layer.backward(x, x, half, {}, {workspace.data(), workspace.bytes()}, nullptr);
  });
  check_refused(variant, "a gradient that is to be written and added", "main_grad_up", [&] {
    const kiln::Tensor main(memory.data(), kiln::DType::kFloat32, {16, 8}, device);
    const MlpGradients both = {.up = gate, .main = {.up = main}};
    const Guarded workspace(variant.memory, layer.backward_workspace_bytes(x, x, {}, both));
    layer.backward(x, x, {}, both, {workspace.data(), workspace.bytes()}, nullptr);
  });
  if (variant.memory.is_gpu()) {
    const auto wide = [&](std::initializer_list<std::int64_t> shape) {
      return kiln::Tensor(memory.data(), kiln::DType::kFloat32, shape, device);
    };
    const kiln::Tensor wide_y(other.data(), kiln::DType::kFloat32, {1, 1}, device);
    check_refused(variant, "float32 on a GPU", "float32", [&] {
      const MlpLayer wide_layer =
          make_layer({.gate = wide({1, 1}), .up = wide({1, 1}), .down = wide({1, 1})});
      const Guarded workspace(variant.memory, wide_layer.workspace_bytes(wide({1, 1})));
      wide_layer.forward({wide({1, 1})}, wide_y, {workspace.data(), workspace.bytes()}, nullptr);
    });
  }
}

}  // namespace

void check_isolation(Variant& variant, const MlpData& data, Gate gate, const std::string& text) {
  if (data.shape.m < 4) return;
  MlpBuffers clean_buffers(variant, data, gate);
  const Bytes clean = run_once(variant, clean_buffers);
  const Dirty dirty(data);
  MlpBuffers dirty_buffers(variant, dirty.data, gate);
  const Bytes found = run_once(variant, dirty_buffers);
  const std::size_t size = kiln::size_of(data.dtype);
  bool others_same = true;
  bool nan_stays = true;
  for (std::size_t i = 0; i < clean.size(); i += size) {
    const std::size_t row = i / size / static_cast<std::size_t>(data.shape.d);
    if (dirty.is_nan(row)) {
      nan_stays = nan_stays && std::isnan(decode(data.dtype, &found[i]));
    } else if (row != dirty.infinite_row) {
      others_same = others_same && std::equal(&clean[i], &clean[i] + size, &found[i]);
    }
  }
  report(variant, others_same, text + ": a NaN or infinite row of an input changed another of y");
  report(variant, nan_stays, text + ": a NaN row of an input gave a number");
}

MlpData rows_of(const MlpData& data, std::int64_t first, std::int64_t count) {
  MlpData part = data;
  part.shape.m = count;
  const std::int64_t row_bytes =
      data.shape.d * static_cast<std::int64_t>(kiln::size_of(data.dtype));
  const auto cut = [&](Bytes& rows) {
    rows = Bytes(rows.begin() + first * row_bytes, rows.begin() + (first + count) * row_bytes);
  };
  cut(part.x);
  if (data.has_residual) cut(part.residual);
  return part;
}

std::vector<RowRange> row_ranges(std::int64_t m) {
  std::vector<RowRange> ranges;
  for (const std::int64_t count : {1, 2, 16, 17, 64, 65, 129, 192, 300, 513, 768, 769, 1500}) {
    if (count < m) ranges.push_back({count * 7 % (m - count), count});
  }
  return ranges;
}

void check_residual(Variant& variant, const MlpData& data, const std::string& text) {
  const Gate gate = variant.package.gates.front();
  MlpData zeros = data;  // -0: what is added to it keeps its sign, too
  const std::size_t size = kiln::size_of(data.dtype);
  for (std::size_t i = 0; i < zeros.residual.size(); i += size) {
    encode(data.dtype, -0.0, &zeros.residual[i]);
  }
  MlpBuffers with_zeros(variant, zeros, gate);
  const Bytes found = run_once(variant, with_zeros);
  with_zeros.poison();
  with_zeros.run_without_residual();
  variant.memory.synchronize();
  report(variant, with_zeros.read_y() == found, text + ": a residual of -0 changes y");

  MlpData alone = data;
  std::fill(alone.down.begin(), alone.down.end(), static_cast<unsigned char>(0));
  std::fill(alone.down_bias.begin(), alone.down_bias.end(), static_cast<unsigned char>(0));
  MlpBuffers without_down(variant, alone, gate);
  // As numbers: the sum of 0 and -0 is 0.
  report(variant,
         decode_all(data.dtype, run_once(variant, without_down)) ==
             decode_all(data.dtype, data.residual),
         text + ": y is not the residual where down is 0");

  MlpBuffers in_place(variant, data, gate);
  const Bytes beside = run_once(variant, in_place);
  in_place.run_in_place();
  variant.memory.synchronize();
  report(variant, in_place.read_residual() == beside,
         text + ": a y that is the residual gets other bits than one beside it");
}

void check_behaviour(Variant& variant, const Options& options) {
  check_refusals(variant);
  for (const kiln::DType dtype : {kiln::DType::kBFloat16, kiln::DType::kFloat16}) {
    for (const Shape shape : shapes(options, variant.memory.is_gpu())) {
      const std::string text = "M=" + std::to_string(shape.m) + " D=" + std::to_string(shape.d) +
                               " H=" + std::to_string(shape.h) + " " + name_of(dtype);
      try {
        MlpData data = random_mlp(shape, dtype, true, options.seed + 7);
        add_residual(data, options.seed + 10);
        const MlpData other =
            random_mlp({shape.m + 3, shape.d, shape.h}, dtype, false, options.seed);
        check_repeats(variant, data, text, variant.memory.is_gpu() && !options.light ? 1000 : 1);
        check_isolation(variant, data, variant.package.gates.front(), text);
        check_residual(variant, data, text);
        if (variant.memory.is_gpu()) check_graph(variant, data, text);
        if (variant.memory.is_gpu()) check_order(variant, data, text);
        check_threads(variant, data, other, text);
        if (!variant.memory.is_gpu()) check_fork(variant, data, text);
      } catch (const std::exception& error) {
        report(variant, false, text + ": " + error.what());
      }
    }
    for (const Shape shape : invariant_shapes(options, variant.memory.is_gpu())) {
      try {
        check_batch_invariance(variant, dtype, shape, options.seed + 8);
      } catch (const std::exception& error) {
        report(variant, false, std::string("batch-invariant calls: ") + error.what());
      }
    }
  }
}

}  // namespace gated_mlp_test
