// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/quote.hpp"

namespace kiln::cli {
namespace {

std::string size_text(std::uint64_t bytes) {
  constexpr double kKilobyte = 1000;
  const auto value = static_cast<double>(bytes);
  char text[32];
  if (value < kKilobyte) {
    std::snprintf(text, sizeof text, "%.0f B", value);
  } else if (value < kKilobyte * kKilobyte) {
    std::snprintf(text, sizeof text, "%.1f kB", value / kKilobyte);
  } else {
    std::snprintf(text, sizeof text, "%.1f MB", value / (kKilobyte * kKilobyte));
  }
  return text;
}

void draw_bar(const Event& event) {
  constexpr std::uint64_t kWidth = 30;
  const std::uint64_t filled = event.total == 0 ? 0 : kWidth * event.done / event.total;
  std::string bar(static_cast<std::size_t>(std::min(filled, kWidth)), '#');
  bar.resize(kWidth, '.');
  const bool finished = event.done == event.total;
  std::fprintf(stderr, "\r%s [%s] %s of %s%s", printable(event.subject).c_str(), bar.c_str(),
               size_text(event.done).c_str(), size_text(event.total).c_str(), finished ? "\n" : "");
}

void print_line(const Event& event) {
  if (event.done != event.total) return;
  std::fprintf(stderr, "fetched %s, %s\n", printable(event.subject).c_str(),
               size_text(event.total).c_str());
}

}  // namespace

Observer progress_on_stderr(bool quiet) {
  if (quiet) return {};
  const bool terminal = isatty(STDERR_FILENO) == 1;
  return [terminal](const Event& event) {
    if (event.stage == Event::Stage::kRetry) {
      // After a bar that stands half-way.
      std::fprintf(stderr, "%sretry: %s\n", terminal ? "\n" : "", printable(event.note).c_str());
    }
    if (event.stage != Event::Stage::kLayer || event.total == 0) return;
    if (terminal) {
      draw_bar(event);
    } else {
      print_line(event);
    }
  };
}

}  // namespace kiln::cli
