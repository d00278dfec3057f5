// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "hint.hpp"
#include "kiln/resolve.hpp"

namespace kiln {

namespace {

constexpr std::size_t kMaxRows = 100;
constexpr std::size_t kMaxVariantWidth = 40;

std::string describe_gpu(const Gpu& gpu) {
  std::string text;
  if (!gpu.name.empty()) text.append(" ").append(gpu.name);
  return text.append(" (").append(to_string(gpu.capability)).append(")");
}

std::string describe_host(const Resolution& resolution) {
  const Host& host = resolution.host;
  std::string text = "host: " + std::string(to_string(host.arch)) + ", CPU " + to_string(host.cpu);
  text += host.glibc ? ", glibc " + to_string(*host.glibc) : ", no glibc";
  text += host.driver ? ", driver CUDA " + to_string(*host.driver) : ", no NVIDIA driver";
  text += ", " + (host.gpus.empty() ? std::string("no GPU") : describe_gpus(host.gpus));
  text += "; for " + to_string(resolution.device);
  for (std::size_t i = 0; i < host.overridden.size(); ++i) {
    text += (i == 0 ? "; overridden: " : " ") + host.overridden[i];
  }
  return text;
}

void pad(std::string& text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
}

}  // namespace

std::string describe_gpus(const std::vector<Gpu>& gpus) {
  std::string text;
  for (std::size_t first = 0; first < gpus.size();) {
    const std::string what = describe_gpu(gpus[first]);
    std::size_t last = first;
    while (last + 1 < gpus.size() && describe_gpu(gpus[last + 1]) == what &&
           gpus[last + 1].ordinal == gpus[last].ordinal + 1) {
      ++last;
    }
    text += (text.empty() ? "GPU " : ", GPU ") + std::to_string(gpus[first].ordinal);
    if (last != first) text.append("-").append(std::to_string(gpus[last].ordinal));
    text += what;
    first = last + 1;
  }
  return text;
}

std::string Resolution::explain() const {
  std::vector<std::size_t> rows(decisions.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t left, std::size_t right) {
    return decisions[left].rank < decisions[right].rank;
  });
  const std::size_t hidden = rows.size() > kMaxRows ? rows.size() - kMaxRows : 0;
  rows.resize(rows.size() - hidden);

  const auto verdict = [&](std::size_t row) {
    if (row == chosen) return std::string("chosen");
    const Decision& decision = decisions[row];
    return decision.accepted() ? std::string("fits") : std::string(to_string(decision.refusal));
  };
  std::size_t variant_width = 0;
  std::size_t verdict_width = 0;
  for (const std::size_t row : rows) {
    variant_width = std::max(variant_width, decisions[row].variant.size());
    verdict_width = std::max(verdict_width, verdict(row).size());
  }
  variant_width = std::min(variant_width, kMaxVariantWidth);

  std::string text = describe_host(*this);
  for (const std::size_t row : rows) {
    std::string line = row == chosen ? "> " : "  ";
    line += decisions[row].variant;
    pad(line, 2 + variant_width);
    line += "  " + verdict(row);
    pad(line, 2 + variant_width + 2 + verdict_width);
    text += "\n" + line + "  " + decisions[row].detail;
  }
  if (hidden != 0) text += "\n  and " + std::to_string(hidden) + " more";
  return text;
}

}  // namespace kiln
