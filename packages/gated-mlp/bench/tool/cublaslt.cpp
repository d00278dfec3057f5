// SPDX-License-Identifier: Apache-2.0
#include "cublaslt.hpp"

#include <array>
#include <limits>
#include <stdexcept>
#include <vector>

namespace gated_mlp_bench {
namespace {

// Of cublasLt.h and library_types.h, as they have been since CUDA 11.
constexpr int kReal32 = 0;
constexpr int kReal16 = 2;
constexpr int kRealB16 = 14;
constexpr int kCompute32 = 68;
constexpr int kTranspose = 1;
constexpr int kDescriptorTransposeA = 3;
constexpr int kDescriptorEpilogue = 7;
constexpr int kDescriptorBias = 8;
constexpr int kEpilogueBias = 4;
constexpr int kPreferenceWorkspace = 1;
constexpr int kProposals = 16;
constexpr std::size_t kWorkspace = std::size_t{64} << 20;

}  // namespace

/// cublasLtMatmulHeuristicResult_t
struct CublasLt::Proposal {
  std::array<std::uint64_t, 8> algorithm;
  std::size_t workspace;
  int state;
  float waves;
  std::array<int, 4> reserved;
};

struct CublasLt::Gemm::State {
  const Gpu* gpu;
  const SharedLibrary* library;
  void* handle;
  void* workspace;
  void* description = nullptr;
  void* w_layout = nullptr;
  void* x_layout = nullptr;
  void* y_layout = nullptr;
  Proposal proposal{};

  ~State() {
    for (void* layout : {w_layout, x_layout, y_layout}) {
      if (layout != nullptr) library->call("cublasLtMatrixLayoutDestroy", layout);
    }
    if (description != nullptr) library->call("cublasLtMatmulDescDestroy", description);
  }

  // cuBLAS counts by columns: row-major y = x w^T is y^T = w x^T there.
  void run(const Proposal& with, const Operands& on) const {
    const float one = 1;
    const float zero = 0;
    library->call("cublasLtMatmul", handle, description, static_cast<const void*>(&one), on.w,
                  w_layout, on.x, x_layout, static_cast<const void*>(&zero),
                  static_cast<const void*>(on.y), y_layout, on.y, y_layout,
                  static_cast<const void*>(with.algorithm.data()), workspace, kWorkspace,
                  gpu->stream());
  }
};

CublasLt::Gemm::Gemm(std::unique_ptr<State> state) : state_(std::move(state)) {}
CublasLt::Gemm::Gemm(Gemm&&) noexcept = default;
CublasLt::Gemm::~Gemm() = default;
void CublasLt::Gemm::run(const Operands& operands) const {
  state_->run(state_->proposal, operands);
}

std::unique_ptr<CublasLt> CublasLt::find(const Gpu& gpu) {
  SharedLibrary library({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"});
  if (!library.loaded()) return nullptr;
  return std::unique_ptr<CublasLt>(new CublasLt(gpu, std::move(library)));
}

CublasLt::CublasLt(const Gpu& gpu, SharedLibrary library)
    : gpu_(gpu), library_(std::move(library)), workspace_(gpu, kWorkspace) {
  library_.call("cublasLtCreate", &handle_);
}

CublasLt::~CublasLt() {
  library_.function<int(void*)>("cublasLtDestroy")(handle_);
}

std::string CublasLt::version() const {
  return library_.name() + " " +
         std::to_string(library_.function<std::size_t()>("cublasLtGetVersion")());
}

CublasLt::Gemm CublasLt::choose(const Linear& linear, const std::vector<Operands>& rotated) const {
  const int type = linear.dtype == kiln::DType::kFloat16 ? kReal16 : kRealB16;
  auto state = std::make_unique<Gemm::State>(Gemm::State{
      .gpu = &gpu_, .library = &library_, .handle = handle_, .workspace = workspace_.data()});
  const auto rows = static_cast<std::uint64_t>(linear.rows);
  const auto in = static_cast<std::uint64_t>(linear.in);
  const auto out = static_cast<std::uint64_t>(linear.out);
  library_.call("cublasLtMatmulDescCreate", &state->description, kCompute32, kReal32);
  const auto set = [&](int attribute, auto value) {
    library_.call("cublasLtMatmulDescSetAttribute", state->description, attribute,
                  static_cast<const void*>(&value), sizeof(value));
  };
  set(kDescriptorTransposeA, kTranspose);
  if (linear.bias != nullptr) {
    set(kDescriptorEpilogue, kEpilogueBias);
    set(kDescriptorBias, linear.bias);
  }
  library_.call("cublasLtMatrixLayoutCreate", &state->w_layout, type, in, out, linear.in);
  library_.call("cublasLtMatrixLayoutCreate", &state->x_layout, type, in, rows, linear.in);
  library_.call("cublasLtMatrixLayoutCreate", &state->y_layout, type, out, rows, linear.out);

  const Key key(linear.rows, linear.in, linear.out, linear.dtype, linear.bias != nullptr);
  if (const auto known = chosen_.find(key); known != chosen_.end()) {
    state->proposal = known->second;
    return Gemm(std::move(state));
  }
  double best = std::numeric_limits<double>::infinity();
  for (const Proposal& proposal : propose(*state)) {
    const Gpu::Graph graph(gpu_, [&] {
      for (const Operands& operands : rotated) state->run(proposal, operands);
    });
    graph.milliseconds(2);
    const double took = graph.milliseconds(5);
    if (took < best) {
      best = took;
      state->proposal = proposal;
    }
  }
  if (best == std::numeric_limits<double>::infinity()) {
    throw std::runtime_error(library_.name() + " proposes nothing for " + std::to_string(rows) +
                             " x " + std::to_string(out) + " x " + std::to_string(in));
  }
  chosen_.emplace(key, state->proposal);
  return Gemm(std::move(state));
}

std::vector<CublasLt::Proposal> CublasLt::propose(const Gemm::State& state) const {
  void* preference = nullptr;
  library_.call("cublasLtMatmulPreferenceCreate", &preference);
  const std::size_t workspace = kWorkspace;
  library_.call("cublasLtMatmulPreferenceSetAttribute", preference, kPreferenceWorkspace,
                static_cast<const void*>(&workspace), sizeof(workspace));
  std::vector<Proposal> proposals(kProposals);
  int found = 0;
  library_.call("cublasLtMatmulAlgoGetHeuristic", handle_, state.description, state.w_layout,
                state.x_layout, state.y_layout, state.y_layout, preference, kProposals,
                proposals.data(), &found);
  library_.call("cublasLtMatmulPreferenceDestroy", preference);
  proposals.resize(static_cast<std::size_t>(found));
  std::erase_if(proposals, [](const Proposal& proposal) { return proposal.state != 0; });
  return proposals;
}

}  // namespace gated_mlp_bench
