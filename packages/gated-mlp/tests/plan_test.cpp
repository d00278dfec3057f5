// SPDX-License-Identifier: Apache-2.0
//
// The pure parts of the GPU path, checked without a GPU: plans, and the index arithmetic that the
// device code uses.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/plan.h"
#include "tile.h"

namespace {

using namespace gated_mlp;

constexpr GpuFacts kH200 = {132, 232448};
constexpr GpuFacts kA100 = {108, 166912};
constexpr GpuFacts kRtx4090 = {128, 101376};

// Four rows that one ldmatrix phase (8 lanes) or one cp.async phase (8 threads) touches must lie in
// different 16-byte groups of the 128 bytes that all banks serve at once.
bool conflict_free(const std::array<int, 8>& offsets) {
  std::set<int> groups;
  for (const int offset : offsets) groups.insert(offset / 16 % 8);
  return groups.size() == 8;
}

template <class T>
void check_shared_memory() {
  CAPTURE(T::kRows);
  std::set<int> offsets;
  for (int row = 0; row < T::kRows; ++row) {
    for (int chunk = 0; chunk < T::kChunks; ++chunk) {
      const int offset = chunk_offset<T>(row, chunk);
      CHECK(offset % 16 == 0);
      CHECK(offset < T::kOperandBytes);
      offsets.insert(offset);
    }
  }
  CHECK(offsets.size() == static_cast<std::size_t>(T::kRows * T::kChunks));

  for (int row = 0; row < T::kRows; row += 8) {  // ldmatrix: eight rows, one chunk
    for (int chunk = 0; chunk < T::kChunks; ++chunk) {
      std::array<int, 8> phase{};
      for (int i = 0; i < 8; ++i) {
        phase[static_cast<std::size_t>(i)] = chunk_offset<T>(row + i, chunk);
      }
      CHECK(conflict_free(phase));
    }
  }
  for (int thread = 0; thread < T::kThreads; thread += 8) {  // cp.async: eight threads
    std::array<int, 8> phase{};
    for (int i = 0; i < 8; ++i) {
      phase[static_cast<std::size_t>(i)] =
          chunk_offset<T>((thread + i) / T::kChunks, (thread + i) % T::kChunks);
    }
    CHECK(conflict_free(phase));
  }
}

TEST_CASE("tile: chunks fill the operand once and no access phase has a bank conflict") {
  check_shared_memory<TallTile>();
  check_shared_memory<LargeTile3>();
  check_shared_memory<LargeTile4>();
  check_shared_memory<MediumTile>();
  check_shared_memory<SmallTile>();
}

// (output column, half) pairs that the warps of one CTA cover.
template <class T, bool kGated>
std::set<int> covered_rows() {
  std::set<int> rows;
  for (int warp = 0; warp < T::kWarpColumns; ++warp) {
    for (int block = 0; block < T::kColumnBlocks; ++block) {
      for (int i = 0; i < 8; ++i) rows.insert(column_block_row<T, kGated>(warp, block) + i);
    }
  }
  return rows;
}

template <class T>
void check_columns() {
  CAPTURE(T::kColumns);
  CHECK(covered_rows<T, true>().size() == static_cast<std::size_t>(T::kColumns));
  CHECK(covered_rows<T, false>().size() == static_cast<std::size_t>(T::kColumns));
  CHECK(*covered_rows<T, true>().rbegin() == T::kColumns - 1);
  // The epilogue pairs column block j with j + half: the same column of gate and of up.
  for (int warp = 0; warp < T::kWarpColumns; ++warp) {
    for (int j = 0; j < T::kColumnBlocks / 2; ++j) {
      CHECK(column_block_row<T, true>(warp, j) < T::kColumns / 2);
      CHECK(column_block_row<T, true>(warp, j + T::kColumnBlocks / 2) ==
            column_block_row<T, true>(warp, j) + T::kColumns / 2);
    }
  }
}

TEST_CASE("tile: the warps cover every column once; gate and up of an output share a thread") {
  check_columns<TallTile>();
  check_columns<LargeTile4>();
  check_columns<MediumTile>();
  check_columns<SmallTile>();
}

TEST_CASE("tile: every CTA has its own output tile, for any panel") {
  for (const unsigned tiles_m : {1u, 2u, 7u, 64u}) {
    for (const unsigned tiles_n : {1u, 3u, 8u, 9u, 23u}) {
      for (const unsigned panel : {1u, 3u, 8u}) {
        std::set<std::pair<unsigned, unsigned>> seen;
        for (unsigned i = 0; i < tiles_m * tiles_n; ++i) {
          const TilePosition at = tile_position(i, tiles_m, tiles_n, std::min(panel, tiles_n));
          CHECK(at.row < tiles_m);
          CHECK(at.column < tiles_n);
          seen.insert({at.row, at.column});
        }
        CHECK(seen.size() == static_cast<std::size_t>(tiles_m) * tiles_n);
      }
    }
  }
}

TEST_CASE("tile: two large CTAs, or a tall one, fit a multiprocessor of every supported GPU") {
  // CUDA reserves 1 KiB a CTA. Per SM: 164 KiB on 8.0, 100 KiB on 8.6, 8.9 and 12.0.
  CHECK(TallTile::kSharedBytes + 1024 <= 100 * 1024);
  CHECK(2 * (LargeTile4::kSharedBytes + 1024) <= 164 * 1024);
  CHECK(2 * (LargeTile3::kSharedBytes + 1024) <= 100 * 1024);
  CHECK(2 * (MediumTile::kSharedBytes + 1024) <= 100 * 1024);
  CHECK(2 * (SmallTile::kSharedBytes + 1024) <= 100 * 1024);
}

TEST_CASE("plan: the tile follows shape, alignment and device") {
  struct Row {
    GemmShape shape;
    GpuFacts gpu;
    TileKind tile;
    unsigned ctas;
  };
  const auto gated = [](int64_t m, int64_t n, int64_t k, bool aligned = true) {
    return GemmShape{true, Element::kBFloat16, m, n, k, aligned};
  };
  const auto plain = [](int64_t m, int64_t n, int64_t k, bool aligned = true) {
    return GemmShape{false, Element::kBFloat16, m, n, k, aligned};
  };
  const std::vector<Row> rows = {
      {gated(8192, 3072, 768), kH200, TileKind::kLarge4, 64 * 48},
      {plain(8192, 768, 3072), kH200, TileKind::kLarge4, 64 * 6},
      {gated(8192, 3072, 768), kA100, TileKind::kLarge4, 64 * 48},
      {gated(8192, 3072, 768), kRtx4090, TileKind::kLarge3, 64 * 48},
      {gated(4096, 14336, 4096), kH200, TileKind::kTall, 16 * 224},
      {plain(4096, 4096, 14336), kH200, TileKind::kTall, 16 * 32},
      {plain(4096, 4096, 14336), kA100, TileKind::kTall, 16 * 32},
      {plain(4096, 4096, 14336), kRtx4090, TileKind::kTall, 16 * 32},
      {plain(4096, 4096, 2040), kH200, TileKind::kLarge4, 32 * 32},
      {plain(4096, 4096, 2048), {132, 96 * 1024 - 1}, TileKind::kLarge3, 32 * 32},
      {gated(1, 14336, 3584), kH200, TileKind::kDecode4, 1792},
      {plain(1, 3584, 14336), kH200, TileKind::kDecode4, 448},
      {plain(16, 3580, 14336), kRtx4090, TileKind::kDecode4, 448},
      {plain(17, 3584, 14336), kH200, TileKind::kSmall, 112},
      {plain(1, 3584, 14331, false), kH200, TileKind::kAnyAlignment, 56},
      {plain(256, 3584, 14336), kH200, TileKind::kMedium, 4 * 56},
      {gated(8192, 3072, 767, false), kH200, TileKind::kAnyAlignment, 128 * 96},
      {gated(0, 3072, 768), kH200, TileKind::kDecode4, 0},
      {plain(128, 0, 768), kH200, TileKind::kLarge4, 0},
      {plain(7, 8, 0), kH200, TileKind::kDecode8, 1},
      {plain(1, 768, 3072), kH200, TileKind::kDecode8, 96},
      {plain(1, 1056, 3072), kH200, TileKind::kDecode8, 132},
      {plain(1, 1064, 3072), kH200, TileKind::kDecode4, 133},
  };
  for (const Row& row : rows) {
    const GemmPlan plan = plan_gemm(row.shape, row.gpu);
    std::array<char, 128> text{};
    describe(plan, text.data(), text.size());
    CAPTURE(std::string(text.data()));
    CHECK(plan.tile == row.tile);
    CHECK(plan.ctas == row.ctas);
    CHECK(plan.fits);
    CHECK(plan.kernel == gemm_kernel(row.shape.gated, row.shape.element, row.tile));
    const bool wide = row.tile == TileKind::kDecode8 || row.tile == TileKind::kTall;
    CHECK(plan.threads == (wide ? 256 : 128));
  }
}

TEST_CASE("plan: few rows of an invariant shape take a tile whose sums are those of many rows") {
  for (const int64_t m : {1, 16}) {
    GemmShape shape = {false, Element::kBFloat16, m, 768, 3072, true};
    CHECK(is_decode(plan_gemm(shape, kH200).tile));
    shape.invariant = true;
    CHECK(plan_gemm(shape, kH200).tile == TileKind::kSmall);
  }
}

TEST_CASE("plan: a product that adds has no kernel of few rows") {
  for (const std::int64_t rows : {1, 16, 17, 3072}) {
    GemmShape shape = {false, Element::kBFloat16, rows, 3584, 4096, true};
    const GemmPlan written = plan_gemm(shape, kH200);
    shape.adds = true;
    const GemmPlan added = plan_gemm(shape, kH200);
    CHECK_FALSE(is_decode(added.tile));
    CHECK((added == written) == !is_decode(written.tile));
  }
}

TEST_CASE("plan: more tiles than a grid can have is refused, not wrapped") {
  const GemmShape shape{false, Element::kFloat16, int64_t{1} << 40, int64_t{1} << 20, 8, true};
  CHECK_FALSE(plan_gemm(shape, kH200).fits);
}

TEST_CASE("plan: every kernel number is used by exactly one kernel") {
  std::set<int> numbers;
  for (const bool gated : {true, false}) {
    for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
      for (int tile = 0; tile < kTileKinds; ++tile) {
        numbers.insert(gemm_kernel(gated, element, static_cast<TileKind>(tile)));
      }
    }
  }
  for (const bool backward : {false, true}) {
    for (const Element element : {Element::kFloat32, Element::kBFloat16, Element::kFloat16}) {
      for (const Width width : {Width::kWide, Width::kNarrow, Width::kSingle}) {
        if (backward && width == Width::kWide) continue;  // there is none
        numbers.insert(pointwise_kernel(backward, element, width));
      }
    }
  }
  numbers.insert({kTransposeKernel, kPaddedKernel});
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    numbers.insert(gated_backward_kernel(element));
    numbers.insert(row_sums_kernel(element));
  }
  CHECK(numbers.size() == static_cast<std::size_t>(kKernels));
  CHECK(*numbers.begin() == 0);
  CHECK(*numbers.rbegin() == kKernels - 1);
}

TEST_CASE("plan: elementwise work is flattened, and as wide as alignment and size ask for") {
  struct Row {
    PointwiseShape shape;
    Width width;
    int64_t rows, columns;
    unsigned grid_x, grid_y, grid_z;
  };
  constexpr Element kBf16 = Element::kBFloat16;
  constexpr Element kF32 = Element::kFloat32;
  constexpr Element kF16 = Element::kFloat16;
  constexpr Width kWide = Width::kWide;
  constexpr Width kNarrow = Width::kNarrow;
  constexpr Width kSingle = Width::kSingle;
  const std::vector<Row> rows = {
      // Small: narrow in both directions, whatever the alignment allows.
      {{false, kBf16, 1, 14336, true, 16}, kNarrow, 1, 14336, 14, 1, 1},
      {{true, kF16, 1, 14336, true, 16}, kNarrow, 1, 14336, 14, 1, 1},
      {{false, kF32, 2, 1024, true, 16}, kNarrow, 1, 2048, 4, 1, 1},
      {{true, kF32, 2, 1024, true, 16}, kNarrow, 1, 2048, 4, 1, 1},
      // 2048 elements a multiprocessor are the most of a small forward.
      {{false, kBf16, 132, 2048, true, 16}, kNarrow, 1, 270336, 264, 1, 1},
      {{false, kBf16, 132, 2056, true, 16}, kWide, 1, 271392, 133, 1, 1},
      {{false, kF32, 132, 2056, true, 16}, kWide, 1, 271392, 266, 1, 1},
      // Large: wide forward, narrow backward.
      {{false, kBf16, 8192, 14336, true, 16}, kWide, 1, 117440512, 57344, 1, 1},
      {{true, kBf16, 8192, 14336, true, 16}, kNarrow, 1, 117440512, 114688, 1, 1},
      {{false, kF32, 8192, 14336, true, 16}, kWide, 1, 117440512, 114688, 1, 1},
      {{true, kF32, 8192, 14336, true, 16}, kNarrow, 1, 117440512, 229376, 1, 1},
      // Aligned to 8 bytes only, in addresses and row strides or in the row's length.
      {{false, kBf16, 500, 3072, false, 8}, kNarrow, 500, 3072, 3, 500, 1},
      {{false, kBf16, 500, 3068, false, 16}, kNarrow, 500, 3068, 3, 500, 1},
      {{false, kF32, 500, 3070, false, 16}, kNarrow, 500, 3070, 6, 500, 1},
      {{true, kF32, 500, 3070, false, 8}, kNarrow, 500, 3070, 6, 500, 1},
      // Less than that.
      {{false, kBf16, 500, 3072, false, 4}, kSingle, 500, 3072, 12, 500, 1},
      {{true, kBf16, 500, 3072, false, 4}, kSingle, 500, 3072, 12, 500, 1},
      {{true, kF32, 500, 3072, false, 4}, kSingle, 500, 3072, 12, 500, 1},
      {{false, kBf16, 500, 3070, false, 16}, kSingle, 500, 3070, 12, 500, 1},
      {{true, kF32, 500, 3071, false, 16}, kSingle, 500, 3071, 12, 500, 1},
      {{false, kBf16, 3, 5, true, 16}, kSingle, 1, 15, 1, 1, 1},
      // Flat beyond what 32 bits count, in elements and in bytes.
      {{false, kBf16, 1 << 19, 14336, true, 16}, kWide, 1, int64_t{14336} << 19, 3670016, 1, 1},
      // Rows with gaps, more than a grid has in y: two layers of the same height.
      {{false, kBf16, 65535, 3072, false, 16}, kWide, 65535, 3072, 2, 65535, 1},
      {{false, kBf16, 65537, 3072, false, 16}, kWide, 65537, 3072, 2, 32769, 2},
      {{false, kBf16, 0, 8, true, 16}, kNarrow, 1, 0, 0, 1, 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.columns);
    const PointwisePlan plan = plan_pointwise(row.shape, kH200);
    CHECK(plan.fits);
    CHECK(plan.kernel == pointwise_kernel(row.shape.backward, row.shape.element, row.width));
    CHECK(plan.rows == row.rows);
    CHECK(plan.columns == row.columns);
    CHECK(plan.grid_x == row.grid_x);
    CHECK(plan.grid_y == row.grid_y);
    CHECK(plan.grid_z == row.grid_z);
  }
}

TEST_CASE("plan: wide outputs that no L2 cache holds are stored as passing it") {
  const auto passes = [](Element element, int64_t rows, int64_t columns, bool backward = false,
                         int64_t alignment = 16) {
    return plan_pointwise({backward, element, rows, columns, true, alignment}, kH200).passing;
  };
  CHECK_FALSE(passes(Element::kBFloat16, 8192, 3072));
  CHECK_FALSE(passes(Element::kBFloat16, 8192, 8192));  // 128 MiB
  CHECK(passes(Element::kBFloat16, 8193, 8192));
  CHECK(passes(Element::kFloat32, 4097, 8192));
  CHECK_FALSE(passes(Element::kBFloat16, 8193, 8192, true));  // backward is never wide
  CHECK_FALSE(passes(Element::kBFloat16, 8193, 8192, false, 8));
}

TEST_CASE("plan: the threads of an elementwise grid reach every element, and no layer is idle") {
  for (const bool compact : {true, false}) {
    for (const int64_t alignment : {16, 8, 2}) {
      for (const int64_t count : {1, 7, 77, 65535, 65536, 131071, 200000}) {
        for (const int64_t columns : {1, 2, 5, 8, 1020, 1022, 1024, 6912}) {
          CAPTURE(count);
          CAPTURE(columns);
          const PointwisePlan plan =
              plan_pointwise({false, Element::kFloat16, count, columns, compact, alignment}, kH200);
          int64_t width = 0;
          for (const Width each : {Width::kWide, Width::kNarrow, Width::kSingle}) {
            if (plan.kernel == pointwise_kernel(false, Element::kFloat16, each))
              width = elements_of(each, Element::kFloat16);
          }
          REQUIRE(width > 0);
          const int64_t a_cta = width * kPointwiseThreads;
          CHECK(plan.columns % width == 0);
          CHECK(alignment % (width * bytes_of(Element::kFloat16)) == 0);
          CHECK(plan.grid_x * a_cta >= plan.columns);
          CHECK((plan.grid_x - 1) * a_cta < plan.columns);
          CHECK(plan.grid_y <= 65535);
          const int64_t spare = int64_t{plan.grid_y} * plan.grid_z - plan.rows;
          CHECK(spare >= 0);
          CHECK(spare < plan.grid_z);
        }
      }
    }
  }
}

TEST_CASE("plan: more elementwise CTAs than a grid can have are refused, not wrapped") {
  constexpr Element kF16 = Element::kFloat16;
  CHECK_FALSE(plan_pointwise({false, kF16, 1, int64_t{1} << 43, true, 16}, kH200).fits);
  CHECK_FALSE(plan_pointwise({false, kF16, int64_t{1} << 33, 1, false, 2}, kH200).fits);
}

}  // namespace
