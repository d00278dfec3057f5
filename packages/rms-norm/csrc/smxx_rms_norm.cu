// SPDX-License-Identifier: Apache-2.0
//
// RMS norm and its gradients: a CTA of 256 threads computes a row. Sums go through warp shuffles in
// one fixed order, so that a row's result does not depend on the others or on the GPU.

namespace rms_norm {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Bfloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

__device__ float load(float value) {
  return value;
}
__device__ float load(Bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ float load(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

__device__ void store(float* address, float value) {
  *address = value;
}
__device__ void store(Bfloat16* address, float value) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(address->bits) : "f"(value));
}
__device__ void store(Float16* address, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(address->bits) : "f"(value));
}

// Of all threads, in all threads.
__device__ float sum(float value, float* shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += shared[warp];
  __syncthreads();
  return total;
}

template <class T>
__device__ void forward(const T* x, long long x_stride, const T* weight, const T* residual,
                        long long residual_stride, T* y, long long y_stride, T* h_out,
                        long long h_stride, long long count, float eps, float offset) {
  __shared__ float shared[kWarps];
  const long long row = blockIdx.x;
  x += row * x_stride;
  y += row * y_stride;
  if (residual != nullptr) residual += row * residual_stride;
  if (h_out != nullptr) h_out += row * h_stride;
  const auto h = [&](long long d) {
    if (residual == nullptr) return load(x[d]);
    T rounded;
    store(&rounded, load(x[d]) + load(residual[d]));
    return load(rounded);
  };
  float squares = 0;
  for (long long d = threadIdx.x; d < count; d += kThreads) squares += h(d) * h(d);
  const float scale = 1 / sqrtf(sum(squares, shared) / static_cast<float>(count) + eps);
  for (long long d = threadIdx.x; d < count; d += kThreads) {
    const float value = h(d);  // before y is written, which may be x or residual
    if (h_out != nullptr) store(&h_out[d], value);
    store(&y[d], value * scale * (offset + load(weight[d])));
  }
}

// scales[row] is what weight_gradient needs of the row again.
template <class T>
__device__ void backward(const T* grad_y, long long grad_y_stride, const T* h, long long h_stride,
                         const T* weight, T* grad_h, long long grad_h_stride, float* scales,
                         long long count, float eps, float offset) {
  __shared__ float shared[kWarps];
  const long long row = blockIdx.x;
  grad_y += row * grad_y_stride;
  h += row * h_stride;
  grad_h += row * grad_h_stride;
  float squares = 0;
  float products = 0;
  for (long long d = threadIdx.x; d < count; d += kThreads) {
    const float value = load(h[d]);
    squares += value * value;
    products += value * load(grad_y[d]) * (offset + load(weight[d]));
  }
  const float scale = 1 / sqrtf(sum(squares, shared) / static_cast<float>(count) + eps);
  const float pull = sum(products, shared) * scale * scale / static_cast<float>(count);
  for (long long d = threadIdx.x; d < count; d += kThreads) {
    const float grad = load(grad_y[d]) * (offset + load(weight[d]));
    store(&grad_h[d], scale * (grad - load(h[d]) * pull));
  }
  if (threadIdx.x == 0 && scales != nullptr) scales[row] = scale;
}

// A thread a column: the rows in their order.
template <class T>
__device__ void weight_gradient(const T* grad_y, long long grad_y_stride, const T* h,
                                long long h_stride, const float* scales, T* grad_weight,
                                long long rows, long long count) {
  const long long d = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= count) return;
  float total = 0;
  for (long long row = 0; row < rows; ++row) {
    total += load(grad_y[row * grad_y_stride + d]) * load(h[row * h_stride + d]) * scales[row];
  }
  store(&grad_weight[d], total);
}

}  // namespace rms_norm

using namespace rms_norm;

#define RMS_NORM_KERNELS(T, NAME)                                                                 \
  extern "C" __global__ void __launch_bounds__(kThreads)                                          \
      rms_norm_forward_##NAME(const T* x, long long x_stride, const T* weight, const T* residual, \
                              long long residual_stride, T* y, long long y_stride, T* h_out,      \
                              long long h_stride, long long count, float eps, float offset) {     \
    rms_norm::forward(x, x_stride, weight, residual, residual_stride, y, y_stride, h_out,         \
                      h_stride, count, eps, offset);                                              \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads) rms_norm_backward_##NAME(                \
      const T* grad_y, long long grad_y_stride, const T* h, long long h_stride, const T* weight,  \
      T* grad_h, long long grad_h_stride, float* scales, long long count, float eps,              \
      float offset) {                                                                             \
    rms_norm::backward(grad_y, grad_y_stride, h, h_stride, weight, grad_h, grad_h_stride, scales, \
                       count, eps, offset);                                                       \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads) rms_norm_weight_gradient_##NAME(         \
      const T* grad_y, long long grad_y_stride, const T* h, long long h_stride,                   \
      const float* scales, T* grad_weight, long long rows, long long count) {                     \
    rms_norm::weight_gradient(grad_y, grad_y_stride, h, h_stride, scales, grad_weight, rows,      \
                              count);                                                             \
  }

RMS_NORM_KERNELS(float, f32)
RMS_NORM_KERNELS(Float16, f16)
RMS_NORM_KERNELS(Bfloat16, bf16)
