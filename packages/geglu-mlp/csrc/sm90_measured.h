// SPDX-License-Identifier: Apache-2.0
//
// Sm90_measured: the kernels that were fastest for the widths of models, 65 to 512 rows, where the
// time model of sm90_plan.h loses most. Written by bench/measured.py from
// bench/results/nvidia-h200-gemms.json.
#pragma once

#include <cstdint>

namespace geglu_mlp {

struct Sm90NamedChoice {
  const char* tile;
  int64_t parts;
  bool across;
};

struct Sm90Measured {
  int64_t blocks;  // of 64 rows
  int64_t d;
  int64_t h;
  Sm90NamedChoice gated;
  Sm90NamedChoice plain;
};

inline constexpr int kSm90MeasuredMultiprocessors = 132;

// clang-format off
inline constexpr Sm90Measured kSm90Measured[] = {
    {2, 640, 2560, {"decode_128x64", 1, false}, {"decode_64x64", 4, true}},
    {2, 768, 3072, {"decode_128x64", 1, false}, {"decode_64x64", 4, false}},
    {2, 896, 4864, {"decode_128x64", 1, false}, {"decode_128x80", 6, false}},
    {2, 1024, 4096, {"decode_128x64", 1, false}, {"decode_64x64", 4, true}},
    {2, 1152, 6912, {"decode_128x64", 1, false}, {"decode_128x80", 6, false}},
    {2, 1280, 5120, {"decode_128x64", 1, false}, {"decode_128x80", 6, false}},
    {2, 1536, 6144, {"decode_128x64", 1, false}, {"decode_128x96", 6, false}},
    {2, 1536, 8960, {"prefill_128x224", 1, true}, {"decode_128x96", 6, false}},
    {2, 2048, 8192, {"decode_128x64", 1, false}, {"decode_128x80", 4, false}},
    {2, 2304, 9216, {"prefill_128x224", 1, true}, {"decode_128x80", 4, false}},
    {2, 2560, 10240, {"prefill_128x192", 1, true}, {"decode_128x80", 3, false}},
    {2, 3072, 8192, {"decode_128x64", 1, false}, {"decode_128x80", 3, false}},
    {2, 3584, 14336, {"prefill_128x256", 1, true}, {"decode_128x96", 3, false}},
    {2, 4096, 14336, {"prefill_128x224", 1, true}, {"decode_128x80", 2, true}},
    {2, 5120, 13824, {"prefill_128x224", 1, true}, {"decode_128x80", 2, false}},
    {3, 640, 2560, {"decode_64x64", 1, false}, {"decode_64x64", 4, false}},
    {3, 768, 3072, {"prefill_128x128", 1, false}, {"decode_192x64", 8, false}},
    {3, 896, 4864, {"decode_192x128", 1, false}, {"decode_192x64", 8, false}},
    {3, 1024, 4096, {"prefill_128x128", 1, false}, {"decode_192x64", 4, false}},
    {3, 1152, 6912, {"decode_192x128", 1, false}, {"decode_192x64", 4, false}},
    {3, 1280, 5120, {"decode_192x128", 1, true}, {"decode_192x64", 4, false}},
    {3, 1536, 6144, {"decode_192x128", 1, false}, {"decode_192x64", 4, false}},
    {3, 1536, 8960, {"decode_192x160", 1, false}, {"decode_192x64", 4, false}},
    {3, 2048, 8192, {"decode_192x128", 1, false}, {"decode_192x64", 3, false}},
    {3, 2304, 9216, {"decode_192x160", 1, false}, {"decode_192x64", 3, false}},
    {3, 2560, 10240, {"decode_192x160", 1, false}, {"decode_192x96", 4, false}},
    {3, 3072, 8192, {"decode_192x128", 1, false}, {"decode_192x64", 2, false}},
    {3, 3584, 14336, {"decode_192x224", 1, false}, {"decode_192x96", 3, false}},
    {3, 4096, 14336, {"decode_192x224", 1, true}, {"decode_192x64", 2, false}},
    {3, 5120, 13824, {"decode_192x224", 1, false}, {"decode_192x96", 2, true}},
    {4, 640, 2560, {"decode_128x64", 1, false}, {"decode_128x64", 4, false}},
    {4, 768, 3072, {"prefill_128x96", 1, false}, {"decode_128x80", 3, false}},
    {4, 896, 4864, {"prefill_128x160", 1, false}, {"decode_256x64", 8, false}},
    {4, 1024, 4096, {"prefill_128x128", 1, false}, {"decode_128x80", 4, true}},
    {4, 1152, 6912, {"prefill_128x128", 1, false}, {"decode_128x96", 3, true}},
    {4, 1280, 5120, {"prefill_128x160", 1, false}, {"decode_128x80", 3, true}},
    {4, 1536, 6144, {"prefill_128x192", 1, false}, {"decode_256x64", 4, true}},
    {4, 1536, 8960, {"prefill_128x160", 1, false}, {"decode_256x64", 4, true}},
    {4, 2048, 8192, {"prefill_128x128", 1, false}, {"decode_256x80", 4, true}},
    {4, 2304, 9216, {"prefill_128x160", 1, false}, {"decode_256x80", 4, true}},
    {4, 2560, 10240, {"prefill_128x160", 1, false}, {"decode_256x80", 3, true}},
    {4, 3072, 8192, {"prefill_128x256", 1, false}, {"decode_256x80", 3, false}},
    {4, 3584, 14336, {"prefill_128x224", 1, false}, {"decode_128x128", 2, true}},
    {4, 4096, 14336, {"prefill_128x224", 1, false}, {"decode_256x64", 2, false}},
    {4, 5120, 13824, {"prefill_128x224", 1, false}, {"decode_256x80", 2, false}},
    {5, 640, 2560, {"prefill_128x128", 1, true}, {"decode_128x80", 3, true}},
    {5, 768, 3072, {"prefill_128x192", 1, true}, {"decode_128x80", 3, true}},
    {5, 896, 4864, {"prefill_128x224", 1, true}, {"decode_128x96", 3, true}},
    {5, 1024, 4096, {"prefill_128x192", 1, true}, {"decode_192x64", 3, true}},
    {5, 1152, 6912, {"prefill_128x192", 1, true}, {"decode_128x128", 4, false}},
    {5, 1280, 5120, {"prefill_128x256", 1, true}, {"decode_128x128", 4, true}},
    {5, 1536, 6144, {"decode_192x224", 1, false}, {"decode_128x96", 2, true}},
    {5, 1536, 8960, {"prefill_128x224", 1, true}, {"decode_128x128", 3, false}},
    {5, 2048, 8192, {"prefill_128x192", 1, true}, {"decode_192x128", 3, false}},
    {5, 2304, 9216, {"prefill_128x224", 1, true}, {"decode_192x128", 3, false}},
    {5, 2560, 10240, {"prefill_128x256", 1, true}, {"decode_128x128", 2, true}},
    {5, 3072, 8192, {"prefill_128x192", 1, true}, {"decode_192x128", 2, true}},
    {5, 3584, 14336, {"decode_192x224", 1, true}, {"decode_192x128", 2, true}},
    {5, 4096, 14336, {"decode_192x224", 1, false}, {"decode_192x128", 2, false}},
    {5, 5120, 13824, {"decode_192x224", 1, true}, {"prefill_128x160", 1, true}},
    {6, 640, 2560, {"prefill_128x96", 1, true}, {"decode_128x80", 3, true}},
    {6, 768, 3072, {"prefill_128x96", 1, true}, {"decode_128x80", 2, false}},
    {6, 896, 4864, {"prefill_128x224", 1, true}, {"decode_192x64", 4, true}},
    {6, 1024, 4096, {"prefill_128x192", 1, true}, {"decode_128x80", 2, false}},
    {6, 1152, 6912, {"prefill_128x160", 1, true}, {"decode_128x96", 2, false}},
    {6, 1280, 5120, {"prefill_128x256", 1, true}, {"decode_128x80", 2, true}},
    {6, 1536, 6144, {"prefill_128x160", 1, true}, {"decode_192x64", 2, false}},
    {6, 1536, 8960, {"prefill_128x160", 1, true}, {"decode_128x96", 2, false}},
    {6, 2048, 8192, {"prefill_128x128", 1, true}, {"decode_192x64", 2, false}},
    {6, 2304, 9216, {"prefill_128x224", 1, true}, {"decode_128x128", 2, true}},
    {6, 2560, 10240, {"prefill_128x256", 1, true}, {"decode_128x128", 2, true}},
    {6, 3072, 8192, {"prefill_128x192", 1, true}, {"decode_192x96", 2, false}},
    {6, 3584, 14336, {"prefill_128x224", 1, true}, {"decode_192x128", 2, false}},
    {6, 4096, 14336, {"decode_192x224", 1, false}, {"decode_192x128", 2, false}},
    {6, 5120, 13824, {"prefill_128x160", 1, true}, {"decode_128x128", 1, true}},
    {7, 640, 2560, {"prefill_128x160", 1, false}, {"decode_128x80", 3, true}},
    {7, 768, 3072, {"prefill_128x192", 1, false}, {"decode_128x96", 3, true}},
    {7, 896, 4864, {"prefill_128x160", 1, false}, {"decode_256x64", 4, true}},
    {7, 1024, 4096, {"prefill_128x256", 1, false}, {"decode_128x80", 2, true}},
    {7, 1152, 6912, {"prefill_128x160", 1, false}, {"decode_128x96", 2, true}},
    {7, 1280, 5120, {"prefill_128x160", 1, false}, {"decode_256x80", 3, true}},
    {7, 1536, 6144, {"prefill_128x192", 1, false}, {"decode_128x128", 2, true}},
    {7, 1536, 8960, {"prefill_128x192", 1, false}, {"decode_128x128", 2, true}},
    {7, 2048, 8192, {"prefill_128x256", 1, false}, {"decode_256x80", 2, true}},
    {7, 2304, 9216, {"prefill_128x192", 1, false}, {"decode_256x80", 2, true}},
    {7, 2560, 10240, {"prefill_128x160", 1, false}, {"prefill_128x96", 1, false}},
    {7, 3072, 8192, {"prefill_128x256", 1, false}, {"prefill_128x112", 1, false}},
    {7, 3584, 14336, {"prefill_128x224", 1, false}, {"prefill_128x128", 1, false}},
    {7, 4096, 14336, {"prefill_128x224", 1, false}, {"prefill_128x128", 1, false}},
    {7, 5120, 13824, {"prefill_128x224", 1, false}, {"prefill_128x160", 1, false}},
    {8, 640, 2560, {"prefill_128x96", 1, false}, {"decode_128x80", 2, false}},
    {8, 768, 3072, {"prefill_128x96", 1, false}, {"decode_128x80", 2, false}},
    {8, 896, 4864, {"prefill_128x160", 1, false}, {"decode_256x64", 4, true}},
    {8, 1024, 4096, {"prefill_128x128", 1, false}, {"decode_128x80", 2, true}},
    {8, 1152, 6912, {"prefill_128x160", 1, false}, {"decode_128x96", 2, true}},
    {8, 1280, 5120, {"prefill_128x160", 1, false}, {"decode_128x80", 2, false}},
    {8, 1536, 6144, {"prefill_128x128", 1, false}, {"decode_128x128", 2, true}},
    {8, 1536, 8960, {"prefill_128x192", 1, true}, {"decode_128x128", 2, true}},
    {8, 2048, 8192, {"prefill_128x128", 1, false}, {"decode_256x64", 2, false}},
    {8, 2304, 9216, {"prefill_128x192", 1, false}, {"prefill_128x96", 1, false}},
    {8, 2560, 10240, {"prefill_128x160", 1, false}, {"prefill_128x96", 1, false}},
    {8, 3072, 8192, {"prefill_128x128", 1, false}, {"prefill_128x96", 1, false}},
    {8, 3584, 14336, {"prefill_128x128", 1, false}, {"prefill_128x112", 1, false}},
    {8, 4096, 14336, {"prefill_128x128", 1, false}, {"decode_128x128", 1, true}},
    {8, 5120, 13824, {"prefill_128x96", 1, false}, {"prefill_128x160", 1, false}},
};
// clang-format on

}  // namespace geglu_mlp
