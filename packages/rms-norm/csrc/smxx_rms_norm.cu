// SPDX-License-Identifier: Apache-2.0
//
// RMS norm and its gradients. A CTA reads a row once, by vectors of 16 bytes, or twice, by elements
// (arguments.h). Sums go through warp shuffles in one fixed order, so that a row's result does not
// depend on the others or on the GPU.
#include "arguments.h"

namespace rms_norm {

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

// Neighbours in a row.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Vector {
  T at[kCount];
};

// How a CTA has a row: vector v is thread v's, modulo the threads.
template <class T, int kRowThreads, bool kVectors>
struct Row {
  static constexpr int kCount = kVectors ? 16 / sizeof(T) : 1;  // elements of a vector
  static constexpr int kKept = kVectors ? kElements / kCount : 1;
  static constexpr int kWarps = kRowThreads / 32;
  using Vector = rms_norm::Vector<T, kCount>;

  long long count;

  // use(number of the vector among the kept ones, number in the row), for each vector of this
  // thread.
  template <class Use>
  __device__ void each(const Use& use) const {
    if constexpr (kVectors) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const int v = static_cast<int>(threadIdx.x) + i * kRowThreads;
        if (v * kCount < count) use(i, static_cast<long long>(v));
      }
    } else {
      for (long long v = threadIdx.x; v < count; v += kRowThreads) use(0, v);
    }
  }

  static __device__ Vector load(const void* data, long long begin, long long v) {
    return *reinterpret_cast<const Vector*>(static_cast<const T*>(data) + begin + v * kCount);
  }
  static __device__ void store(void* data, long long begin, long long v, const Vector& values) {
    *reinterpret_cast<Vector*>(static_cast<T*>(data) + begin + v * kCount) = values;
  }

  // Of all threads, in all threads. A CTA that sums again gives the other half of `shared`.
  template <int kSums>
  static __device__ void sum(float (&values)[kSums], float (&shared)[kSums][kWarps]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        values[i] += __shfl_xor_sync(0xffffffffu, values[i], offset);
      }
      if (threadIdx.x % 32 == 0) shared[i][threadIdx.x / 32] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      values[i] = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) values[i] += shared[i][warp];
    }
  }
};

template <class T, int kRowThreads, bool kVectors>
__device__ void forward(const ForwardArguments& p) {
  using Row = rms_norm::Row<T, kRowThreads, kVectors>;
  using Vector = typename Row::Vector;
  const Row columns{p.count};
  const long long row = blockIdx.x;
  const auto read_h = [&](long long v) {
    Vector h = Row::load(p.x, row * p.x_stride, v);
    if (p.residual == nullptr) return h;
    const Vector more = Row::load(p.residual, row * p.residual_stride, v);
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) store(&h.at[i], load(h.at[i]) + load(more.at[i]));
    return h;
  };
  Vector kept[Row::kKept];
  columns.each([&](int number, long long v) { kept[number] = read_h(v); });
  float squares[1] = {};
  columns.each([&](int number, long long v) {
    const Vector h = kVectors ? kept[number] : read_h(v);
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) squares[0] += load(h.at[i]) * load(h.at[i]);
  });
  __shared__ float shared[1][Row::kWarps];
  Row::sum(squares, shared);
  const float scale = rsqrtf(squares[0] / static_cast<float>(p.count) + p.eps);
  columns.each([&](int number, long long v) {
    // y and h_out may be x or residual: a vector is written after all that is read of it.
    const Vector h = kVectors ? kept[number] : read_h(v);
    if (p.h_out != nullptr) Row::store(p.h_out, row * p.h_out_stride, v, h);
    Vector y = Row::load(p.weight, 0, v);
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) {
      store(&y.at[i], load(h.at[i]) * scale * (p.offset + load(y.at[i])));
    }
    Row::store(p.y, row * p.y_stride, v, y);
  });
}

// Of one part of the rows, in their order.
template <class T, int kRowThreads, bool kVectors>
__device__ void backward(const BackwardArguments& p) {
  using Row = rms_norm::Row<T, kRowThreads, kVectors>;
  using Vector = typename Row::Vector;
  const Row columns{p.count};
  const long long first = blockIdx.x * p.rows_of_part;
  const long long end = min(first + p.rows_of_part, p.rows);
  float* const part = p.sums == nullptr ? nullptr : p.sums + blockIdx.x * p.count;
  __shared__ float shared[2][2][Row::kWarps];
  float sums[Row::kKept][Row::kCount] = {};
  for (long long row = first; row < end; ++row) {
    const auto read_h = [&](long long v) { return Row::load(p.h, row * p.h_stride, v); };
    const auto read_grad = [&](long long v) {
      return Row::load(p.grad_y, row * p.grad_y_stride, v);
    };
    Vector kept_h[Row::kKept];
    Vector kept_grad[Row::kKept];
    columns.each([&](int number, long long v) {
      kept_h[number] = read_h(v);
      kept_grad[number] = read_grad(v);
    });
    float totals[2] = {};  // of squares, and of products
    columns.each([&](int number, long long v) {
      const Vector h = kVectors ? kept_h[number] : read_h(v);
      const Vector grad = kVectors ? kept_grad[number] : read_grad(v);
      const Vector weight = Row::load(p.weight, 0, v);
#pragma unroll
      for (int i = 0; i < Row::kCount; ++i) {
        totals[0] += load(h.at[i]) * load(h.at[i]);
        totals[1] += load(h.at[i]) * load(grad.at[i]) * (p.offset + load(weight.at[i]));
      }
    });
    Row::sum(totals, shared[(row - first) % 2]);
    const auto count = static_cast<float>(p.count);
    const float scale = rsqrtf(totals[0] / count + p.eps);
    const float pull = totals[1] * scale * scale / count;
    columns.each([&](int number, long long v) {
      const Vector h = kVectors ? kept_h[number] : read_h(v);
      const Vector grad = kVectors ? kept_grad[number] : read_grad(v);
      Vector grad_h = Row::load(p.weight, 0, v);
#pragma unroll
      for (int i = 0; i < Row::kCount; ++i) {
        const float along = load(grad.at[i]) * (p.offset + load(grad_h.at[i]));
        store(&grad_h.at[i], scale * (along - load(h.at[i]) * pull));
        const float term = load(grad.at[i]) * load(h.at[i]) * scale;
        if constexpr (kVectors) {
          sums[number][i] += term;
        } else if (part != nullptr) {
          part[v] = row == first ? term : part[v] + term;
        }
      }
      Row::store(p.grad_h, row * p.grad_h_stride, v, grad_h);
    });
  }
  if (!kVectors || part == nullptr) return;
  columns.each([&](int number, long long v) {
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) part[v * Row::kCount + i] = sums[number][i];
  });
}

// The gradient of weight: a CTA adds the parts of 8 columns, in one fixed order.
template <class T>
__device__ void add_parts(const BackwardArguments& p) {
  __shared__ float of_warps[kAddThreads / 32][kAddColumns];
  const int place = static_cast<int>(threadIdx.x) % kAddColumns;
  const long long column = static_cast<long long>(blockIdx.x) * kAddColumns + place;
  float total = 0;
  if (column < p.count) {
#pragma unroll 4
    for (long long part = threadIdx.x / kAddColumns; part < p.parts;
         part += kAddThreads / kAddColumns) {
      total += p.sums[part * p.count + column];
    }
  }
#pragma unroll
  for (int offset = 16; offset >= kAddColumns; offset /= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, offset);
  }
  if (threadIdx.x % 32 < kAddColumns) of_warps[threadIdx.x / 32][place] = total;
  __syncthreads();
  if (threadIdx.x >= kAddColumns || column >= p.count) return;
  total = 0;
#pragma unroll
  for (int warp = 0; warp < kAddThreads / 32; ++warp) total += of_warps[warp][place];
  store(static_cast<T*>(p.grad_weight) + column, total);
}

}  // namespace rms_norm

// forward has registers for 1,536 threads of a multiprocessor: what it reads is all that it does.
#define RMS_NORM_ROWS(T, NAME, THREADS, VECTORS)                        \
  extern "C" __global__ void __launch_bounds__(THREADS, 1536 / THREADS) \
      forward_##NAME(const ForwardArguments p) {                        \
    rms_norm::forward<T, THREADS, VECTORS>(p);                          \
  }                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS)                 \
      backward_##NAME(const BackwardArguments p) {                      \
    rms_norm::backward<T, THREADS, VECTORS>(p);                         \
  }
#define RMS_NORM_KERNELS(T, NAME)                              \
  RMS_NORM_ROWS(T, NAME##_64, 64, true)                        \
  RMS_NORM_ROWS(T, NAME##_256, 256, true)                      \
  RMS_NORM_ROWS(T, NAME##_512, 512, true)                      \
  RMS_NORM_ROWS(T, NAME##_1024, 1024, true)                    \
  RMS_NORM_ROWS(T, NAME##_elements, kThreadsByElements, false) \
  extern "C" __global__ void __launch_bounds__(kAddThreads)    \
      add_parts_##NAME(const BackwardArguments p) {            \
    rms_norm::add_parts<T>(p);                                 \
  }

using namespace rms_norm;

RMS_NORM_KERNELS(float, f32)
RMS_NORM_KERNELS(Float16, f16)
RMS_NORM_KERNELS(Bfloat16, bf16)
