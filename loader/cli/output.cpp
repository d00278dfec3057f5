// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "install/trace.hpp"

namespace kiln::cli {
namespace {

[[gnu::format(printf, 1, 0)]] std::string formatted(const char* format, std::va_list arguments) {
  std::va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (size < 0) return {};
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, arguments);
  text.pop_back();
  return text;
}

std::atomic<bool> g_status_shown = false;

void clear_status() {
  if (g_status_shown.exchange(false)) std::fputs("\r\x1b[K", stderr);
}

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

void show_status(std::string_view line) {
  // The last column stays free: some terminals go to the next line with it.
  const std::string text = printable(line).substr(0, terminal_width() - 1);
  g_status_shown = true;
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
}

void print(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  clear_status();
  std::fputs(printable_lines(formatted(format, arguments)).c_str(), stdout);
  va_end(arguments);
}

void tell(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  clear_status();
  std::fputs(printable_lines(formatted(format, arguments)).c_str(), stderr);
  va_end(arguments);
}

void print_path(const std::filesystem::path& path) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  std::printf("%s\n", terminal ? printable(path.string()).c_str() : path.c_str());
}

Json to_json(const Installed& installed) {
  return {{"name", installed.package.config.name},
          {"version", installed.package.config.version},
          {"variant", installed.package.variant.id},
          {"tested", installed.package.variant.tested},
          {"manifest", installed.package.variant.manifest.digest.str()},
          {"library", installed.package.library.string()},
          {"fallback", !installed.choice.refused.empty()},
          {"registry", installed.choice.registry},
          {"requests", installed.traffic.requests},
          {"bytes_fetched", installed.traffic.bytes}};
}

void print_json(std::string_view kind, Json document) {
  constexpr int kIndent = 2;
  constexpr bool kAscii = true;
  const std::string text = with_schema(kind, std::move(document))
                               .dump(kIndent, ' ', kAscii, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

}  // namespace kiln::cli
