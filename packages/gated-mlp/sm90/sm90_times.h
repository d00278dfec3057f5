// SPDX-License-Identifier: Apache-2.0
//
// Sm90_times: the constants of the time model by which sm90_plan.h chooses kernels. They are fitted
// to bench/results/nvidia-h100-choices*.json and nvidia-h200-choices.json, all at the same sixteen
// widths, by gradient descent, so that the choices lose least against the best of the measured
// ones; gated_mlp_plan says how much. Those of long forwards are means of nvidia-h200-large.json,
// at the same widths.
#pragma once

#include <stdint.h>

namespace gated_mlp {

struct Sm90Step {  // of one block of k
  int64_t rows;
  int64_t columns;
  double time;
};
// By what the model is off for a tile, as a share of the time: of down, then of gate and up; lying,
// then across.
struct Sm90Off {
  const char* name;
  double of[2][2];
};
// Microseconds and terabytes a second. The single constants are no measurements. What all choices
// cost, a launch, is not in them.
struct Sm90Times {
  // Of a block of k of 128 x 128 outputs, and what each block costs beside that: ping-pong,
  // cooperative, and in ping-pong with swapped tiles.
  double prefill_block = 0.2824;
  double prefill_step[3] = {0.01822, 0.0029, 0.02798};
  double prefill_start_gated = 2.953;
  double prefill_end_gated = 0.4828;  // of 128 x 192
  // Of 128 x 192, each wave. What a cooperative kernel is off by is its epilogue's, which nothing
  // hides, and so no share of the product: of gate and up as they lie, as they lie across, then of
  // swapped tiles.
  double cooperative_gated[2][2] = {{1.795, 1.659}, {1.879, 1.713}};
  double cooperative_plain = 2.028;
  double keeping = 2;  // as many times that, where the products are stored too
  double prefill_memory_rate = 3.258;
  double prefill_memory_overlap = 0.7567;
  double prefill_cache_rate = 11.57;
  double prefill_shared_tokens = 0.9608;  // across, of a tile's tokens: as many come to each CTA
  double prefill_overlap = 0.3153;        // as decode_overlap
  // Of what a block moves through shared memory beyond what its products hide.
  double prefill_shared_memory = 0.3109;
  double piece_step = 0.101;             // of 128 columns, more of each block in a piece
  double cut_wave[2] = {0.144, 0.1486};  // whose tiles are in pieces; cooperative
  // Of weights, where a part of the GPU is idle: prefill, swapped, decode.
  double idle_memory[3] = {0.2222, -0.111, 0.147};
  // Of one wave in ping-pong, which is half of a CTA's warpgroups: down, gate and up, swapped.
  double single[3] = {-0.01678, -0.006803, 0.08658};
  Sm90Step decode[15] = {{64, 64, 0.201},    {128, 64, 0.3209},  {128, 80, 0.1678},
                         {128, 96, 0.1739},  {192, 64, 0.2011},  {192, 80, 0.1966},
                         {192, 96, 0.2374},  {192, 128, 0.3348}, {192, 160, 0.4693},
                         {192, 224, 0.6136}, {256, 64, 0.2647},  {144, 128, 0.2712},
                         {144, 192, 0.4198}, {152, 128, 0.2754}, {160, 128, 0.3012}};
  double decode_start_gated = 0.6159;
  double decode_across = 0.8565;
  double decode_end = 0.02234;  // of a row of 128 columns
  // Where k is split; of a row of 128 columns that goes to other CTAs.
  double decode_part = 0.1708;
  double decode_push = 0.02959;
  double memory_rate = 3.292;
  double cache_rate = 14.81;
  // Of the shorter of two things that run side by side, what it costs nevertheless: in a decode
  // kernel products and the L2 cache, then both and memory.
  double decode_overlap = 1.14;
  double memory_overlap = 0.7219;
  double stream_rate = 3.023;  // of memory
  double stream_cache_rate = 11.46;
  double stream_end_gated = 0.9356;
  double stream_end_plain = 1.525;
  // Of two CTAs on each multiprocessor, those that fit in clusters of 4 to 8.
  double cluster_share_two = 0.7419;
  // What a forward takes beside what all the above expects, of the product's time. Of down, then of
  // gate and up; swapped tiles in second place, across in the last.
  double ping_pong_off[2][2][2] = {{{-0.072, -0.019}, {-0.009, 0.037}},
                                   {{-0.035, -0.026}, {-0.031, -0.004}}};
  double pieces_off = -0.09727;  // of a wave, where the last one is cut
  // Of down's decode kernels; across, where k is not split; and more where there are several waves.
  double decode_off = -0.053;
  double whole_across_off = 0.09;
  double decode_waves_off = 0.08187;
  double parts_off[9] = {0, 0, 0.01823, 0.01972, 0.004924, 0, 0.07574, 0, 0};  // of k
  double part[2] = {-0.6368, 0.9511};  // microseconds, of four parts of k
  // Of prefill, swapped and decode tiles, of down, then of gate and up: of the share of the GPU
  // that is idle, and microseconds of each wave.
  double idle_off[2][3] = {{0.01913, -0.005622, 0.06571}, {-0.02641, 0.05692, -0.08764}};
  double wave[2][3] = {{0.1176, 0.21, 0.1948}, {0.1036, 0.5056, 0.1418}};
  // Of the share of a tile's rows beyond the matrix, which the copy engine fills with zeros, slower
  // than it copies others: of down, then of gate and up.
  double outside_off[2] = {0.5025, 0.09842};
  // A forward that takes as long draws so much power that the clock falls, and kernels that move
  // less gain by it: from the first time on, and from the second on in place of what the tile is
  // off by. Of down, then of gate and up; swapped tiles in second place, across in the last.
  double long_from = 800;
  double long_all = 2500;
  double long_off[2][2][2] = {{{-0.038, -0.07}, {-0.045, -0.047}},
                              {{-0.014, -0.022}, {-0.031, -0.044}}};
};
inline constexpr Sm90Times kSm90Times = {};
inline constexpr Sm90Off kSm90Offs[] = {
    {"decode_64x64", {{-0.0324, 0.0175}, {-0.074, -0.0232}}},
    {"decode_128x64", {{0.0659, 0.0814}, {-0.0224, 0.0368}}},
    {"decode_128x80", {{-0.0217, -0.0044}, {0, 0}}},
    {"decode_128x96", {{0.0269, 0.0419}, {0, 0}}},
    {"decode_144x128", {{0.0493, 0.0534}, {0, 0}}},
    {"decode_144x192", {{0.0552, 0.064}, {0, 0}}},
    {"decode_152x128", {{0.0478, 0.058}, {0, 0}}},
    {"decode_160x128", {{0.0378, 0.0333}, {0, 0}}},
    {"decode_192x64", {{-0.1444, -0.0865}, {0, 0}}},
    {"decode_192x80", {{0.0146, -0.0138}, {0, 0}}},
    {"decode_192x96", {{0.02, 0.032}, {0, 0}}},
    {"decode_192x128", {{-0.0017, 0.0252}, {0.0187, 0.0512}}},
    {"decode_192x160", {{0, 0}, {-0.0234, 0.0218}}},
    {"decode_192x224", {{0, 0}, {0.0358, 0.061}}},
    {"decode_256x64", {{-0.0593, -0.0009}, {0, 0}}},
    {"prefill_128x96", {{0.007, 0.0116}, {0.0263, 0.0306}}},
    {"prefill_128x112", {{-0.0011, 0.0025}, {0, 0}}},
    {"prefill_128x128", {{-0.0253, -0.0534}, {0.0277, 0.0236}}},
    {"prefill_128x160", {{-0.0171, -0.0279}, {0.0115, 0.0041}}},
    {"prefill_128x192", {{-0.006, -0.0042}, {-0.0079, 0.0167}}},
    {"prefill_128x224", {{-0.0301, 0.0011}, {-0.0145, -0.0037}}},
    {"prefill_128x256", {{-0.0556, -0.0537}, {-0.003, -0.0165}}},
    {"stream_64x8", {{-0.0643, -0.0643}, {0, 0}}},
    {"stream_64x16", {{0.1581, 0.1581}, {0, 0}}},
    {"stream_64x24", {{-0.0563, -0.0563}, {0, 0}}},
    {"stream_64x32", {{-0.0309, -0.0309}, {0, 0}}},
    {"stream_64x48", {{0, 0}, {-0.0182, -0.0182}}},
    {"stream_64x96", {{0, 0}, {0.07, 0.07}}},
    {"stream_64x128", {{0, 0}, {-0.0169, -0.0169}}},
    {"stream_64x144", {{0, 0}, {-0.0204, -0.0204}}},
    {"stream_64x224", {{0, 0}, {0.0578, 0.0578}}},
    {"swapped_96x128", {{0.0288, 0.0444}, {-0.0157, 0.0329}}},
    {"swapped_96x256", {{0.0405, 0.0605}, {0.0155, 0.0256}}},
    {"swapped_104x128", {{0.0191, 0.0203}, {-0.0235, 0.0014}}},
    {"swapped_104x256", {{-0.0102, 0.0365}, {0.0015, 0.0303}}},
    {"swapped_112x128", {{0.0032, -0.0058}, {-0.0017, 0.0047}}},
    {"swapped_112x256", {{0.0146, 0.0307}, {0.0194, 0.0266}}},
    {"swapped_120x128", {{-0.0069, -0.0116}, {-0.0034, 0.0082}}},
    {"swapped_120x256", {{0.0356, 0.0409}, {-0.004, 0.0195}}},
    {"swapped_128x128", {{-0.0119, -0.0203}, {-0.0002, -0.004}}},
    {"swapped_128x256", {{0.0194, 0.0235}, {0.0157, 0.0155}}},
    {"swapped_136x128", {{-0.0361, -0.0233}, {-0.0165, 0.0169}}},
    {"swapped_136x256", {{0.0098, 0.0134}, {0.0073, 0.0043}}},
    {"swapped_144x128", {{0.0002, -0.0007}, {-0.0438, 0.0009}}},
    {"swapped_144x256", {{-0.0195, -0.0033}, {0.0183, -0.0085}}},
    {"swapped_152x128", {{-0.0449, -0.0405}, {-0.0208, 0.0028}}},
    {"swapped_152x256", {{-0.0085, 0.007}, {0.0143, 0.0323}}},
    {"swapped_160x128", {{0.0029, 0.0021}, {-0.051, -0.0262}}},
    {"swapped_160x256", {{0.0122, 0.0067}, {0.0099, -0.0253}}},
    {"swapped_168x128", {{-0.0011, -0.0012}, {-0.0237, -0.0025}}},
    {"swapped_168x256", {{0.0155, 0.0193}, {0.0116, 0.0114}}},
    {"swapped_176x128", {{-0.0093, -0.0154}, {-0.0294, 0.0052}}},
    {"swapped_176x256", {{-0.0088, 0.0096}, {0.0196, 0.0082}}},
    {"swapped_184x128", {{0.003, 0.0036}, {-0.0048, 0.029}}},
    {"swapped_184x256", {{0.0074, 0.0056}, {0.0503, 0.0699}}},
    {"swapped_192x128", {{0.0036, 0.0005}, {-0.0291, -0.0112}}},
    {"swapped_192x256", {{0.0268, 0.0232}, {0.0355, 0.0552}}},
};

template <int kCount>
constexpr double step_of(const Sm90Step (&steps)[kCount], int64_t rows, int64_t columns) {
  for (const Sm90Step& step : steps) {
    if (step.rows == rows && step.columns == columns) return step.time;
  }
  return 0;  // unknown: such a tile would be the fastest everywhere, and does not compile
}

constexpr bool same_text(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

constexpr Sm90Off off_of(const char* tile) {
  for (const Sm90Off& off : kSm90Offs) {
    if (same_text(off.name, tile)) return off;
  }
  return {tile, {}};  // not measured
}

}  // namespace gated_mlp
