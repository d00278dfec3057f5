// SPDX-License-Identifier: Apache-2.0
//
// Pins: kernels for SM 9.0 that a call names itself, instead of the plans' choices: for tests,
// which so run every kernel at every shape, and for measurements. The text of the ops' attribute
// `kernels` names each product once at most, and the others stay the plan's:
//
//   gated=prefill_128x192,across down=decode_144x128,3
//
//   product       kernels                       what may follow the name
//   gated         kGatedTiles; where gate_out   ,PARTS: of k, in a decode kernel, from kSm90Parts
//                 and up_out are kept,          ,across: Sm90Choice::across
//                 kKeepingTiles
//   down          kPlainTiles                   the same
//   grad_x        kTokenTiles                   nothing
//   grad_weights  kWeightTiles                  nothing
//
// Pure, as the plans. Whether a kernel can take a shape, runs_sm90() says.
#pragma once

#include <stdio.h>
#include <string.h>

#include "sm90/sm90_plan.h"

namespace gated_mlp {

enum class Pinned : int { kGated, kDown, kGradX, kGradWeights };
inline constexpr int kPinnedProducts = 4;
inline constexpr const char* kPinnedNames[kPinnedProducts] = {"gated", "down", "grad_x",
                                                              "grad_weights"};

struct Pins {
  bool there[kPinnedProducts] = {};
  Sm90Choice choices[kPinnedProducts];  // of gradients: the tile alone

  bool any() const { return there[0] || there[1] || there[2] || there[3]; }
  const Sm90Choice* of(Pinned product) const {
    const int i = static_cast<int>(product);
    return there[i] ? &choices[i] : nullptr;
  }
};

// Which products an op has, and so which of them its calls may pin.
struct Pinnable {
  bool forward = false;   // gated and down
  bool keeps = false;     // gated: gate_out and up_out too
  bool backward = false;  // gated, grad_x and grad_weights

  bool has(Pinned product) const {
    if (product == Pinned::kGated) return true;
    return product == Pinned::kDown ? forward : backward;
  }
  Sm90Tiles tiles(Pinned product) const {
    switch (product) {
      case Pinned::kGated:
        return {kGatedTiles, kGatedTileCount};
      case Pinned::kDown:
        return {kPlainTiles, kPlainTileCount};
      case Pinned::kGradX:
        return kGradientTiles[static_cast<int>(GradientKind::kTokens)];
      case Pinned::kGradWeights:
        return kGradientTiles[static_cast<int>(GradientKind::kWeights)];
    }
    return {};
  }
  bool has(Pinned product, const Sm90Tile& tile) const {
    const bool kept_only = product == Pinned::kGated && (keeps || backward);
    return !kept_only || keeping_place(tile) < kKeepingTileCount;
  }
};

// A text that is written piece by piece and never overrun.
struct PinError {
  char* text;
  size_t size;
  size_t used = 0;

  template <class... Values>
  void add(const char* format, Values... values) {
    if (used >= size) return;
    const int count = snprintf(text + used, size - used, format, values...);
    if (count > 0) used += static_cast<size_t>(count);
  }
};

inline bool is_word(const char* begin, size_t size, const char* word) {
  return strlen(word) == size && strncmp(begin, word, size) == 0;
}

// The kernel of one product; false, and `error` says why, if there is none such.
inline bool read_pin(const char* begin, size_t size, const Pinnable& op, Pinned product,
                     Sm90Choice* choice, PinError error) {
  const Sm90Tiles all = op.tiles(product);
  const bool of_forward = product == Pinned::kGated || product == Pinned::kDown;
  const char* const end = begin + size;
  const auto* comma = static_cast<const char*>(memchr(begin, ',', size));
  const size_t name = static_cast<size_t>((comma != nullptr ? comma : end) - begin);
  *choice = {};
  choice->tile = -1;
  for (int i = 0; i < all.count; ++i) {
    if (is_word(begin, name, all.tiles[i].name) && op.has(product, all.tiles[i])) choice->tile = i;
  }
  if (choice->tile < 0) {
    error.add("kernels names %s=%.*s; expected one of", kPinnedNames[static_cast<int>(product)],
              static_cast<int>(name), begin);
    for (int i = 0; i < all.count; ++i) {
      if (op.has(product, all.tiles[i])) error.add(" %s", all.tiles[i].name);
    }
    return false;
  }
  while (comma != nullptr) {
    const char* const word = comma + 1;
    comma = static_cast<const char*>(memchr(word, ',', static_cast<size_t>(end - word)));
    const auto length = static_cast<size_t>((comma != nullptr ? comma : end) - word);
    int64_t parts = 0;
    for (const int64_t each : kSm90Parts) {
      if (length == 1 && word[0] == '0' + each) parts = each;
    }
    if (of_forward && is_word(word, length, "across")) {
      choice->across = true;
    } else if (of_forward && parts != 0) {
      choice->parts = parts;
    } else {
      error.add("kernels has \"%.*s\" after %s; expected %s", static_cast<int>(length), word,
                all.tiles[choice->tile].name,
                of_forward ? "across, or parts of k: 1, 2, 3, 4, 6 or 8" : "nothing");
      return false;
    }
  }
  return true;
}

// False, and `error` says what is wrong and what is right, if the text is not as above.
inline bool read_pins(const char* text, const Pinnable& op, Pins* pins, PinError error) {
  *pins = {};
  for (const char* word = text; *word != '\0';) {
    const size_t size = strcspn(word, " ");
    const size_t key = strcspn(word, "= ");
    int product = 0;
    while (product < kPinnedProducts &&
           !(is_word(word, key, kPinnedNames[product]) && op.has(static_cast<Pinned>(product)))) {
      ++product;
    }
    if (product == kPinnedProducts || key >= size) {
      error.add("kernels has \"%.*s\"; expected PRODUCT=KERNEL, PRODUCT one of",
                static_cast<int>(size), word);
      for (int i = 0; i < kPinnedProducts; ++i) {
        if (op.has(static_cast<Pinned>(i))) error.add(" %s", kPinnedNames[i]);
      }
      return false;
    }
    if (pins->there[product]) {
      error.add("kernels names %s twice", kPinnedNames[product]);
      return false;
    }
    pins->there[product] = true;
    if (!read_pin(word + key + 1, size - key - 1, op, static_cast<Pinned>(product),
                  &pins->choices[product], error)) {
      return false;
    }
    word += size;
    word += strspn(word, " ");
  }
  return true;
}

}  // namespace gated_mlp
