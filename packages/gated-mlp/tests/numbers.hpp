// SPDX-License-Identifier: Apache-2.0
//
// Numbers: the storage types as double, random data, and a parallel loop for the reference. Written
// apart from the kernels' own conversions, so that a mistake there is not repeated here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "kiln/tensor.hpp"

namespace gated_mlp_test {

/// Bytes of a tensor, on the host.
using Bytes = std::vector<unsigned char>;

double decode(kiln::DType dtype, const unsigned char* element);
void encode(kiln::DType dtype, double value, unsigned char* element);  ///< to nearest, ties to even

std::vector<double> decode_all(kiln::DType dtype, const Bytes& bytes);

/// `count` normal numbers of the given deviation, of some thousand different ones; the same on any
/// number of CPUs.
Bytes random_normal(kiln::DType dtype, std::int64_t count, double deviation,
                    std::mt19937_64& random);

/// The same by repeating a block of a million: cheap to make, and on a GPU no power is saved as
/// with zeros.
Bytes repeated_normal(kiln::DType dtype, std::int64_t count, double deviation, std::uint64_t seed);

/// Calls function(i) for i in [0, count) on all CPUs.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& function);

/// Calls function(first, last) for pieces of [0, count), `size` of it each, on all CPUs: the same
/// pieces on any number of them.
void parallel_pieces(std::size_t count, std::size_t size,
                     const std::function<void(std::size_t, std::size_t)>& function);

}  // namespace gated_mlp_test
