// SPDX-License-Identifier: Apache-2.0
//
// Large: what is hashed on a thread beside its writer is judged as a small blob is.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "scratch.hpp"
#include "store/cache.hpp"
#include "verify/hash_thread.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKiB = 1024;

std::string bytes_of(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 16);
  return bytes;
}

/// Passes on `bytes` in pieces of this size, from where the sink ends.
void send(BlobSink& sink, std::string_view bytes, std::size_t piece) {
  for (bytes.remove_prefix(sink.size()); !bytes.empty();
       bytes.remove_prefix(std::min(piece, bytes.size()))) {
    sink.write(bytes.substr(0, piece));
  }
}

TEST_CASE("large: a thread hashes what the caller would") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 512 * kKiB - 1, 512 * kKiB,
                                 512 * kKiB + 1, 2048 * kKiB, 2560 * kKiB, 5000 * kKiB + 7}) {
    const std::string bytes = bytes_of(size);
    for (const std::size_t piece : {16 * kKiB, std::size_t{65521}, 8192 * kKiB}) {
      CAPTURE(size);
      CAPTURE(piece);
      HashThread hash;
      for (std::size_t at = 0; at < size; at += piece) {
        hash.update(std::string_view(bytes).substr(at, piece));
      }
      CHECK(hash.finish() == Digest::of(bytes));
      CHECK(error_of([&] { hash.finish(); }).code() == ErrorCode::kInternal);
    }
  }
}

TEST_CASE("large: one that is dropped halfway ends its thread") {
  const std::string bytes = bytes_of(3000 * kKiB);
  for (int i = 0; i < 50; ++i) {
    HashThread hash;
    hash.update(std::string_view(bytes).substr(0, static_cast<std::size_t>(i) * 60 * kKiB));
  }
}

TEST_CASE("large: a blob is stored, resumed and refused as a small one") {
  const std::string good = bytes_of(3 * kKiB * kKiB + 5);
  const Descriptor blob{std::string(kMediaTypeLayer), Digest::of(good), good.size()};
  const Subject subject{"layer of a test", "the test", ""};
  std::string changed = good;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  const struct {
    const char* name;
    std::string served;
    std::size_t cut;  // of a first download; 0: there was none
    const char* refusal;
  } cases[] = {
      {"whole", good, 0, nullptr},
      {"resumed", good, 2'000'000, nullptr},
      {"the last bit", changed, 0, "digest is "},
      {"too few", good.substr(0, good.size() - 1), 0, "promised"},
      {"too many", good + "x", 0, "more than"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    const Scratch scratch;
    const Cache cache(scratch / "cache");
    if (each.cut > 0) {
      CHECK_THROWS_AS(cache.write(blob, subject,
                                  [&](BlobSink& sink) {
                                    send(sink, good.substr(0, each.cut), 16 * kKiB);
                                    throw 42;
                                  }),
                      int);
    }
    std::uint64_t from = 0;
    const auto fetch = [&] {
      cache.write(blob, subject, [&](BlobSink& sink) {
        from = sink.size();
        send(sink, each.served, 16 * kKiB);
      });
    };
    if (each.refusal == nullptr) {
      fetch();
      CHECK(read_file(cache.blob_path(blob.digest)) == good);
    } else {
      const Error error = error_of(fetch);
      CHECK(error.code() == ErrorCode::kIntegrity);
      CHECK_CONTAINS(error.what(), each.refusal);
      CHECK_FALSE(cache.has_blob(blob.digest));
    }
    CHECK(from == each.cut);
    CHECK(fs::is_empty(cache.root() / "ingest"));
  }
}

}  // namespace
}  // namespace kiln::test
