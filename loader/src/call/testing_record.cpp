// SPDX-License-Identifier: Apache-2.0
//
// Testing record: what a check found as the document that a publisher takes, and the main() of a
// check that runs on its own, over get_kernel.
#include <cstdio>

#include "base/draft.hpp"
#include "documents/json.hpp"
#include "install/tested_here.hpp"
#include "kiln/error.hpp"
#include "kiln/testing.hpp"

namespace kiln::testing {

void Check::write_record(const std::filesystem::path& folder) const {
  TestRecord record = record_of_today(kernel_.resolution().host, kernel_.device());
  record.variant = kernel_.variant();
  record.library = digest_of_file(kernel_.library());
  record.cases = cases_;
  record.failed = failed_;
  record.worst = {worst_.begin(), worst_.end()};
  make_folders(absolute_path(folder));
  replace_file(folder / (std::string(kernel_.variant()) + ".json"), to_json(record).dump(2) + "\n",
               0644);
}

int run_check(int argc, char** argv, std::string_view package, int version,
              const std::function<void(Check& check, bool light)>& all) {
  std::filesystem::path records;
  std::string registry;
  std::string device_word;
  bool light = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--light") {
      light = true;
    } else if ((word == "--registry" || word == "--device") && i + 1 < argc) {
      (word == "--registry" ? registry : device_word) = argv[++i];
    } else if (word.starts_with("-")) {
      std::fprintf(stderr, "%s: no option %s\n", argv[0], argv[i]);
      return static_cast<int>(ErrorCode::kUsage);
    } else {
      records = word;
    }
  }
  int ran = 0;
  bool good = true;
  for (const Device device : {Device::cpu(), Device::cuda(0)}) {
    const bool gpu = device.kind == Device::Kind::kCuda;
    if (!device_word.empty() && device_word != (gpu ? "cuda" : "cpu")) continue;
    try {
      Check check(
          get_kernel(package, {.version = version, .device = device, .registry = registry}));
      all(check, light);
      if (!records.empty()) check.write_record(records);
      std::printf("%s %s: %s double precision in %llu cases\n", std::string(package).c_str(),
                  std::string(check.kernel().variant()).c_str(),
                  check.passed() ? "agrees with" : "DIFFERS from",
                  static_cast<unsigned long long>(check.cases()));
      good = good && check.passed();
      ++ran;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      const bool no_gpu = gpu && error.code() == ErrorCode::kUsage;
      const bool not_for_it = device_word.empty() && error.code() == ErrorCode::kNoVariant;
      if (!no_gpu && !not_for_it) return static_cast<int>(error.code());
    }
  }
  return ran == 0 ? 77 : good ? 0 : 1;
}

}  // namespace kiln::testing
