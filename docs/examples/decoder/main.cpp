// SPDX-License-Identifier: Apache-2.0
//
// decoder: continues a sequence of tokens with a language model whose layers all come from a
// registry.
//
//   decoder MODEL --tokens 1,15043,29892 [--new 32] [--device cpu|cuda] [--logits FILE]
//           [--temperature 0.8] [--top-k 40] [--top-p 0.95] [--min-p 0.05] [--seed 1]
//
// MODEL is a folder with config.json and model.safetensors, as transformers' save_pretrained writes
// them, of a Llama or of a first Gemma in bfloat16 or float16, or quantized. Each next token is the
// one with the greatest logit, or drawn, where there is a temperature. --logits writes the float32
// logits of each step. Prints the tokens, then what was loaded and how long it took.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

#include "model.hpp"
#include "sampler.hpp"

namespace {

struct Options {
  std::string model;
  std::vector<int> tokens;
  int fresh = 32;
  kiln::Device device;  // automatic: the GPU if there is one, else the CPU
  std::string logits;
  Limits limits;
};

template <class Number = int>
Number number(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error("'" + text + "' is no number");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      options.model = word;
      continue;
    }
    if (i + 1 == argc) throw std::runtime_error(word + " wants a value");
    const std::string value = argv[++i];
    if (word == "--tokens") {
      for (std::size_t begin = 0; begin <= value.size();) {
        const std::size_t end = std::min(value.find(',', begin), value.size());
        options.tokens.push_back(number(value.substr(begin, end - begin)));
        begin = end + 1;
      }
    } else if (word == "--new") {
      options.fresh = number(value);
    } else if (word == "--device" && (value == "cpu" || value == "cuda")) {
      options.device = value == "cpu" ? kiln::Device::cpu() : kiln::Device::cuda(0);
    } else if (word == "--logits") {
      options.logits = value;
    } else if (word == "--temperature") {
      options.limits.temperature = number<float>(value);
    } else if (word == "--top-k") {
      options.limits.top_k = number(value);
    } else if (word == "--top-p") {
      options.limits.top_p = number<float>(value);
    } else if (word == "--min-p") {
      options.limits.min_p = number<float>(value);
    } else if (word == "--seed") {
      options.limits.seed = number<std::int64_t>(value);
    } else {
      throw std::runtime_error(("no option " + word).append(" ").append(value));
    }
  }
  if (options.model.empty() || options.tokens.empty()) {
    throw std::runtime_error(
        "usage: decoder MODEL --tokens 1,2,3 [--new 32] [--device cpu|cuda] [--logits FILE] "
        "[--temperature 0.8] [--top-k 40] [--top-p 0.95] [--min-p 0.05] [--seed 1]");
  }
  return options;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run(const Options& options) {
  std::ofstream file;
  if (!options.logits.empty()) file.open(options.logits, std::ios::binary);
  const auto start = std::chrono::steady_clock::now();
  const auto longest = static_cast<std::int64_t>(options.tokens.size()) + options.fresh;
  Model model(options.model, options.device, longest);
  Sampler sampler(options.limits);
  const double loaded = seconds_since(start);

  double prompt = 0, rest = 0;
  std::vector<int> next = options.tokens;
  for (int i = 0; i < options.fresh; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<float> logits = model.forward(next);
    (i == 0 ? prompt : rest) += seconds_since(begin);
    if (file.is_open()) {
      file.write(reinterpret_cast<const char*>(logits.data()),
                 static_cast<std::streamsize>(logits.size() * sizeof(float)));
    }
    next = {sampler.next(logits, static_cast<std::int64_t>(options.tokens.size()) + i)};
    std::printf("%s%d", i == 0 ? "" : ",", next.front());
    std::fflush(stdout);
  }
  std::puts("");
  for (const std::string& variant : model.variants()) std::fprintf(stderr, "%s\n", variant.c_str());
  std::fprintf(stderr, "loaded in %.2f s; %zu tokens in %.1f ms", loaded, options.tokens.size(),
               1e3 * prompt);
  if (options.fresh > 1)
    std::fprintf(stderr, "; then %.1f tokens a second", (options.fresh - 1) / rest);
  std::fputs("\n", stderr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decoder: %s\n", error.what());
    return 2;
  }
}
