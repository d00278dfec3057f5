// SPDX-License-Identifier: Apache-2.0
//
// Rows of 16-bit elements, two at a time, wherever they lie. Device only.
#pragma once

namespace gated_mlp {

// Two neighbours of a row, the first in the low half; what lies outside is 0. `address` is that of
// the first, `left` the number of elements from there to the end of the row.
__device__ __forceinline__ unsigned load_two(const void* data, long long at, long long left,
                                             bool paired) {
  const auto* address = static_cast<const unsigned short*>(data) + at;
  if (left <= 0) return 0;
  if (paired) return *reinterpret_cast<const unsigned*>(address);
  const unsigned low = address[0];
  return left > 1 ? low | static_cast<unsigned>(address[1]) << 16 : low;
}

__device__ __forceinline__ void store_two(void* data, long long at, long long left, bool paired,
                                          unsigned both) {
  auto* address = static_cast<unsigned short*>(data) + at;
  if (left <= 0) return;
  if (paired && left > 1) {
    *reinterpret_cast<unsigned*>(address) = both;
    return;
  }
  address[0] = static_cast<unsigned short>(both & 0xffffu);
  if (left > 1) address[1] = static_cast<unsigned short>(both >> 16);
}

}  // namespace gated_mlp
