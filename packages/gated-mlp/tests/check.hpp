// SPDX-License-Identifier: Apache-2.0
//
// Check: what all checks of one variant share: the loaded kernel, the device's memory, guarded
// buffers, and the tally that becomes the test record.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "kernel_shapes.hpp"
#include "kiln/kiln.hpp"
#include "memory.hpp"
#include "numbers.hpp"
#include "package.hpp"

namespace gated_mlp_test {

struct Tally {
  std::uint64_t cases = 0;
  std::uint64_t failed = 0;
  /// Greatest relative L2 error of a large case, by dtype; those of backward by "backward <dtype>".
  std::map<std::string, double> worst;
};

struct Variant {
  const Package& package;
  kiln::Kernel kernel;
  Memory& memory;
  Tally tally;
};

/// Whose kernels take the variant's aligned shapes.
KernelFamily family_of(const Variant& variant);

/// Whether cuBLASLt computes the shape.
bool is_by_cublaslt(const Variant& variant, const Shape& shape, bool aligned);

/// Counts a case; prints it if it failed.
void report(Variant& variant, bool passed, const std::string& text);

std::string name_of(kiln::DType dtype);
double bound_of(kiln::DType dtype);  ///< relative L2 error that is accepted
/// The same where gate's and up's products are rounded too.
double bound_of_cublaslt(kiln::DType dtype);

/// A tensor in device memory with guard bands on both sides. Poison is 0xff: a NaN in every dtype.
class Guarded {
 public:
  static constexpr std::size_t kGuard = 512;

  /// An input, or what is read and written. `shift` moves the tensor off its alignment, in bytes.
  Guarded(Memory& memory, Bytes content, std::size_t shift = 0);
  /// An output, poisoned.
  Guarded(Memory& memory, std::size_t bytes, std::size_t shift = 0);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  void* data() const { return base_ + kGuard + shift_; }
  std::size_t bytes() const { return bytes_; }
  void poison();
  void restore();  ///< of an input: as it was made
  Bytes read() const;
  bool guards_intact() const;
  const Bytes& content() const { return content_; }      ///< what an input was made of
  bool unchanged() const { return read() == content_; }  ///< an input

 private:
  void allocate();  // with its guard bands

  Memory& memory_;
  std::size_t bytes_;
  Bytes content_;  // of an input
  std::size_t shift_;
  unsigned char* base_ = nullptr;
};

/// Everything one forward call needs, on the host.
struct MlpData {
  Shape shape;
  kiln::DType dtype;
  bool biased;
  Bytes x, gate, up, down, gate_bias, up_bias, down_bias;
  bool has_residual = false;
  Bytes residual;
  bool saturates = false;  ///< an h that float16 does not hold
  bool invariant = false;  ///< batch_invariant
  std::string kernels;     ///< pinned ones, as host/pins.h has them
};
MlpData random_mlp(Shape shape, kiln::DType dtype, bool biased, std::uint64_t seed);
/// A random residual, as large as y: a larger one would hide y's errors.
void add_residual(MlpData& data, std::uint64_t seed);

/// By how many bytes tensors are off their alignment.
struct Shift {
  std::size_t all = 0;       ///< each but the residual
  std::size_t residual = 0;  ///< of the residual
};
/// All by the same.
inline Shift shift_by(std::size_t bytes) {
  return {bytes, bytes};
}

/// The same in device memory, with outputs and workspace poisoned.
class MlpBuffers {
 public:
  MlpBuffers(Variant& variant, const MlpData& data, Gate gate, Shift shift = {});

  void run(void* stream = nullptr) const;
  void run_without_residual() const;
  void run_in_place() const;  ///< y is the residual
  /// `count` calls, each on what the one before it wrote: x to y, y to x, and so on.
  void run_chain(int count, void* stream, const std::function<void()>& after_each) const;
  /// The same with what the residual becomes: each call adds to what the one before it wrote.
  void run_sum(int count, void* stream, const std::function<void()>& after_each) const;
  /// x, gate, up, down and the residual, which is there, become gated(s, s) of `source`'s, each by
  /// a kernel, number `last` last.
  void derive_inputs(const GatedLayer& gated, const MlpBuffers& source, int last,
                     void* stream) const;
  Bytes read_y() const { return y_.read(); }
  Bytes read_residual() const { return residual_.read(); }
  void poison();
  /// Empty if every guard band is intact and no input was written.
  std::string damage() const;

 private:
  MlpWeights weights() const;
  kiln::Tensor x_tensor() const;
  kiln::Tensor y_tensor() const;
  kiln::Tensor residual_tensor() const;
  std::array<kiln::Tensor, 5> inputs() const;
  void forward(const MlpInput& input, const kiln::Tensor& y, void* stream) const;
  kiln::Tensor tensor(const Guarded& buffer, std::initializer_list<std::int64_t> shape) const;

  const MlpData& data_;
  kiln::Device device_;
  Guarded x_, gate_, up_, down_, gate_bias_, up_bias_, down_bias_, residual_, y_;
  MlpLayer layer_;
  Guarded workspace_;
};

void check_forward(std::vector<Variant>& variants, const Options& options);
void check_rows(std::vector<Variant>& variants, const Options& options);
void check_overflow(std::vector<Variant>& variants, const Options& options);
void check_kernels(std::vector<Variant>& variants, const Options& options);
void check_tiles(std::vector<Variant>& variants, const Options& options);
void check_backward(std::vector<Variant>& variants, const Options& options);
void check_pointwise(std::vector<Variant>& variants, const Options& options);
void check_behaviour(Variant& variant, const Options& options);
/// training_forward by the kernel that the data pins: y has the bits of forward by the same kernel,
/// and each element of gate_out and up_out is one rounding of its sum.
void check_pinned_training(Variant& variant, const MlpData& data, Gate gate);
/// Backward of all that training_forward keeps, by the kernels that the data pins: every gradient
/// whole, written and added, twice with the same bits.
void check_pinned_backward(Variant& variant, const MlpData& data, Gate gate, std::uint64_t seed);
/// Tensors of more than 2^31 elements; tens of GB on the host and on the GPU.
void check_huge_forward(Variant& variant, const Options& options);
void check_huge_pointwise(Variant& variant, const Options& options);

/// Float16 data of which a quarter of h is beyond 65504; it `saturates` and has a residual.
MlpData overflowing_mlp(Shape shape, std::uint64_t seed);
/// Beyond it an h of such data saturates.
double greatest_hidden(const Variant& variant);
/// y of such data is that of a saturated h, and on a GPU not finite if h is not to saturate.
void check_saturation(Variant& variant, const Shape& shape, Shift shift, std::uint64_t seed);

/// Rows of NaN, odd and even, and of infinity in x, and others in the residual where there is one,
/// change no bit of the other rows of y.
void check_isolation(Variant& variant, const MlpData& data, Gate gate, const std::string& text);

/// Some of the data's rows, and of its residual's.
MlpData rows_of(const MlpData& data, std::int64_t first, std::int64_t count);
/// For calls whose rows are compared with those of a call of all `m`: where they begin, how many.
struct RowRange {
  std::int64_t first, count;
};
std::vector<RowRange> row_ranges(std::int64_t m);

/// A residual of -0 changes no bit of y; where down is 0, y is the residual; and y may take the
/// residual's place.
void check_residual(Variant& variant, const MlpData& data, const std::string& text);

}  // namespace gated_mlp_test
