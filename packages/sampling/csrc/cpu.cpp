// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: a thread a row. A search keeps the logits that are between its bounds, which
// are fewer from step to step. Masses are float in units of the greatest logit's, sums double, in
// the order of the columns.
#include <math.h>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using rows::load;

constexpr int64_t kRows = 64;  // whose candidates the workspace holds

struct Candidate {
  int32_t key;  // in the order of the logits
  float mass;
};

int32_t key_of(float z) {
  if (z == 0) return 0;  // and -0
  int32_t bits;
  memcpy(&bits, &z, sizeof(bits));
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// Philox4x32-10 with the seed for a key, of the counter (position, 0): 53 bits in [0, 1).
double uniform(uint64_t seed, uint64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                         0};
  auto low = static_cast<uint32_t>(seed);
  auto high = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ low;
    counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ high;
    counter[1] = static_cast<uint32_t>(b);
    counter[3] = static_cast<uint32_t>(a);
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{counter[0]} << 32 | counter[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

template <class T>
class Row {
 public:
  Row(const SampleArguments& call, int64_t m, Candidate* candidates)
      : call_(call), m_(m), z_(rows::row<const T>(call.logits, m)), candidates_(candidates) {}

  int64_t sample() {
    const int64_t first = find_greatest();
    const float temperature = of(call_.temperature);
    if (first < 0 || !(temperature > 0)) return first;
    scale_ = 1 / (temperature > 1e-30F ? temperature : 1e-30F);
    const int64_t top_k = static_cast<const int32_t*>(call_.top_k.data)[m_];
    const double top_p = double{of(call_.top_p)};
    if (top_k > 0 && top_k < call_.V) {
      collect();
      if (count_ > top_k) search(top_k, -1);
    }
    if (top_p < 1) {
      collect();
      search(1, top_p * mass_);
    }
    return draw();
  }

 private:
  float of(const sdk::Tensor& tensor) const { return static_cast<const float*>(tensor.data)[m_]; }

  float mass_of(float z) const { return expf((z - greatest_) * scale_); }

  // The first of the greatest; -1 where there is none, or NaN or +inf.
  int64_t find_greatest() {
    int64_t first = -1;
    for (int64_t v = 0; v < call_.V; ++v) {
      const float z = load(z_[v]);
      if (z != z || z == HUGE_VALF) return -1;
      if (z > greatest_) {
        greatest_ = z;
        first = v;
      }
    }
    return first;
  }

  // The candidates of a search: all from low_ on.
  void collect() {
    count_ = 0;
    mass_ = 0;
    for (int64_t v = 0; v < call_.V; ++v) {
      const float z = load(z_[v]);
      if (key_of(z) < low_) continue;
      candidates_[count_++] = {key_of(z), mass_of(z)};
      mass_ += double{candidates_[count_ - 1].mass};
    }
  }

  // Raises low_ to the greatest key from which on there are `wanted` logits and `share` of mass.
  void search(int64_t wanted, double share) {
    int64_t high = int64_t{key_of(greatest_)} + 1;
    int64_t beyond = 0;  // logits from `high` on, and their mass
    double mass_beyond = 0;
    while (high - low_ > 1 && count_ > 1) {
      const int64_t middle = low_ + (high - low_) / 2;
      int64_t count = 0;
      double mass = 0;
      for (int64_t i = 0; i < count_; ++i) {
        if (candidates_[i].key < middle) continue;
        ++count;
        mass += double{candidates_[i].mass};
      }
      const bool holds = beyond + count >= wanted && mass_beyond + mass >= share;
      int64_t left = 0;
      for (int64_t i = 0; i < count_; ++i) {
        if ((candidates_[i].key >= middle) == holds) candidates_[left++] = candidates_[i];
      }
      count_ = left;
      if (holds) {
        low_ = middle;
        continue;
      }
      high = middle;
      beyond += count;
      mass_beyond += mass;
    }
  }

  int64_t draw() const {
    const float least = of(call_.min_p) < 1 ? of(call_.min_p) : 1;
    const auto kept = [&](int64_t v) {
      const float z = load(z_[v]);
      const float mass = key_of(z) < low_ ? 0 : mass_of(z);
      return mass >= least ? double{mass} : 0;
    };
    double total = 0;
    for (int64_t v = 0; v < call_.V; ++v) total += kept(v);
    const double target = total * uniform(static_cast<const uint64_t*>(call_.seeds.data)[m_],
                                          static_cast<const uint64_t*>(call_.positions.data)[m_]);
    double until = 0;
    int64_t token = -1;
    for (int64_t v = 0; v < call_.V && until <= target; ++v) {
      const double mass = kept(v);
      until += mass;
      if (mass > 0) token = v;
    }
    return token;
  }

  const SampleArguments& call_;
  int64_t m_;
  const T* z_;
  Candidate* candidates_;
  float greatest_ = -HUGE_VALF;
  float scale_ = 1;
  int64_t low_ = int64_t{key_of(-HUGE_VALF)} + 1;  // of the logits that stay, the least key
  int64_t count_ = 0;                              // of candidates, and their mass
  double mass_ = 0;
};

}  // namespace

size_t sample_workspace_bytes(const SampleArguments& call) {
  const int64_t count = call.M < kRows ? call.M : kRows;
  return sizeof(Candidate) * static_cast<size_t>(count * call.V);
}

int32_t sample(const SampleArguments& call, kiln_error*) {
  auto* candidates = static_cast<Candidate*>(call.workspace);
  for (int64_t first = 0; first < call.M; first += kRows) {
    const int64_t count = call.M - first < kRows ? call.M - first : kRows;
    rows::with_element(call.logits.dtype, [&]<class T>(T*) {
      rows::for_each(count, count * call.V, call.threads, [&](int64_t i) {
        const int64_t token = Row<T>(call, first + i, candidates + i * call.V).sample();
        if (call.tokens.dtype == sdk::DType::kInt64) {
          static_cast<int64_t*>(call.tokens.data)[first + i] = token;
        } else {
          static_cast<int32_t*>(call.tokens.data)[first + i] = static_cast<int32_t>(token);
        }
      });
    });
  }
  return KILN_OK;
}

}  // namespace kiln::package
