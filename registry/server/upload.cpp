// SPDX-License-Identifier: Apache-2.0
#include "registry/server/upload.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"
#include "settings/settings.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdvice = "Check the registry, or the proxy before it, and push again";

constexpr const char* kTagsThatMove =
    ". The tag is there, and names something else now. Where the registry's tags are immutable, "
    "exempt those that Kiln moves: 'latest' of kiln.tuf, a version's own number, and 'sha256-*'";

void drop(std::string_view) {}

bool is_success(const HttpAnswer& answer) {
  return answer.status >= 200 && answer.status < 300;
}

/// Hashes what comes, and keeps none of it: each try begins at the start.
class Hashed final : public BlobSink {
 public:
  Hashed(const Descriptor& descriptor, Subject subject)
      : descriptor_(descriptor), subject_(std::move(subject)), verifier_(descriptor, subject_) {}

  std::uint64_t size() const override { return 0; }
  void write(std::string_view bytes) override { verifier_.update(bytes); }
  void restart() override { verifier_ = StreamVerifier(descriptor_, subject_); }
  void finish() override { verifier_.finish(); }

 private:
  Descriptor descriptor_;
  Subject subject_;
  StreamVerifier verifier_;
};

}  // namespace

HttpBody body_of(std::string_view bytes) {
  return {bytes.size(), [bytes](std::uint64_t at, std::span<char> room) {
            const std::string_view rest = bytes.substr(std::min<std::size_t>(at, bytes.size()));
            return rest.copy(room.data(), room.size());
          }};
}

HttpBody body_of_file(const fs::path& path, std::uint64_t size) {
  auto file = std::make_shared<FileDescriptor>(try_open_file(path, O_RDONLY));
  if (!file->valid()) fail_file("read", path, errno);
  return {size, [file, path, size](std::uint64_t at, std::span<char> room) {
            const std::size_t wanted = std::min<std::uint64_t>(room.size(), size - at);
            ssize_t count = 0;
            do {
              count = ::pread(file->get(), room.data(), wanted, static_cast<off_t>(at));
            } while (count < 0 && errno == EINTR);
            if (count < 0) fail_file("read", path, errno);
            if (count == 0 && wanted > 0) {
              throw Error(ErrorCode::kIntegrity, "push " + path.string() + ": it ends after " +
                                                     std::to_string(at) + " bytes, expected " +
                                                     std::to_string(size) +
                                                     ". Something changed it: publish it again");
            }
            return static_cast<std::size_t>(count);
          }};
}

Upload::Upload(const std::string& registry, std::string_view name, const Settings& settings,
               const Patience& patience, Traffic& traffic)
    : place_(registry + "/" + std::string(name)),
      insecure_http_(settings.insecure_http),
      patience_(patience),
      connection_(
          std::make_shared<Connection>(registry, name, settings, patience, traffic, Access::kPush)),
      repository_(open_remote(registry, name, patience, connection_)) {}

void Upload::persist_in(const std::string& what, std::uint64_t bytes,
                        const std::function<void(Until)>& once) {
  persist(
      patience_, what, time_for(bytes), [] { return false; },
      [&](Until until) {
        connection_->finish_by(until);
        once(until);
      });
}

std::optional<std::string> Upload::tagged(const std::string& tag) {
  std::optional<Document> found = repository_->manifest(tag);
  return found ? std::optional(std::move(found->bytes)) : std::nullopt;
}

bool Upload::has(const Descriptor& descriptor, const std::string& what) {
  bool found = false;
  persist_in(what, 0, [&](Until) { found = has_once(descriptor, what); });
  return found;
}

bool Upload::has_once(const Descriptor& descriptor, const std::string& what) {
  HttpRequest request{repository_->origin(descriptor)};
  request.method = HttpMethod::kHead;
  if (is_document(descriptor)) request.accept = kAcceptDocuments;
  const HttpAnswer answer = connection_->ask(request, drop);
  if (answer.status == 404) return false;
  if (answer.status >= 400 && answer.status < 500 &&
      !parse_url(answer.url).same_server(parse_url(request.url))) {
    return has_last_byte(descriptor, what);
  }
  if (answer.status != 200) connection_->fail_status(answer, "look for " + what, "200 or 404");
  const std::string length = answer.header("content-length");
  return length.empty() || length == std::to_string(descriptor.size);
}

/// A registry sends to the store behind it by addresses that are often signed for GET alone: that a
/// store refuses a HEAD says nothing of the blob.
bool Upload::has_last_byte(const Descriptor& descriptor, const std::string& what) {
  struct Enough {};
  HttpRequest request{repository_->origin(descriptor)};
  request.from = descriptor.size > 1 ? descriptor.size - 1 : 0;
  request.total = descriptor.size;
  try {
    // A store that knows no ranges begins with all of it.
    const HttpAnswer answer = connection_->ask(request, [&](std::string_view piece) {
      if (piece.size() > 1) throw Enough();
    });
    if (answer.status == 404 || answer.status == 416) return false;  // not there, or shorter
    if (answer.status != 200 && answer.status != 206) {
      connection_->fail_status(answer, "look for " + what, "200, 206 or 404");
    }
    return true;
  } catch (const Enough&) {
    return true;
  }
}

void Upload::verify(const Descriptor& descriptor, const std::string& what) {
  Hashed hashed(descriptor, {what, repository_->origin(descriptor), kAdvice});
  persist_in(what, descriptor.size, [&](Until until) {
    hashed.restart();
    try {
      repository_->open(descriptor, hashed, {what, until});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      throw Error(ErrorCode::kIntegrity, "verify " + what + ": " + repository_->origin(descriptor) +
                                             " is not there, expected it; nothing names it yet. " +
                                             kAdvice);
    }
    hashed.finish();
  });
}

std::string Upload::read(const Descriptor& descriptor, const std::string& what) {
  return read_document(*repository_, descriptor, what, patience_);
}

void Upload::put_blob(const Descriptor& descriptor, const HttpBody& body, const std::string& what) {
  bool first = true;
  persist_in(what, descriptor.size, [&](Until) {
    // The upload may have been whole and its answer lost.
    if (!std::exchange(first, false) && has_once(descriptor, what)) return;
    put_blob_once(descriptor, body, what);
  });
}

void Upload::put_blob_once(const Descriptor& descriptor, const HttpBody& body,
                           const std::string& what) {
  HttpRequest post{connection_->root() + "blobs/uploads/"};
  post.method = HttpMethod::kPost;
  const HttpAnswer begun = connection_->ask(post, drop);
  if (begun.status != 202) connection_->fail_status(begun, "begin the upload of " + what, "202");
  const std::string location = begun.header("location");
  HttpRequest put{with_field(
      follow_reference(post.url, location, insecure_http_,
                       "begin the upload of " + what + ": " + begun.url + " wants it at "),
      "digest=" + descriptor.digest.str())};
  put.method = HttpMethod::kPut;
  put.body = body;
  put.media_type = "application/octet-stream";
  const HttpAnswer answer = connection_->ask(put, drop);
  if (is_success(answer)) return;
  // An upload that the server has lost, or has in part: only another one can help.
  if (answer.status == 404 || answer.status == 416) {
    throw TryAgain("put " + what + ": status " + std::to_string(answer.status) + " from " +
                       answer.url + ", where its upload was begun",
                   kAdvice);
  }
  connection_->fail_status(answer, "put " + what, "201");
}

void Upload::put_document(const std::string& reference, std::string_view media_type,
                          const std::string& bytes, const std::string& what) {
  persist_in(what, bytes.size(),
             [&](Until) { put_document_once(reference, media_type, bytes, what); });
}

void Upload::put_document_once(const std::string& reference, std::string_view media_type,
                               const std::string& bytes, const std::string& what) {
  HttpRequest put{connection_->root() + "manifests/" + reference};
  put.method = HttpMethod::kPut;
  put.body = body_of(bytes);
  put.media_type = media_type;
  const HttpAnswer answer = connection_->ask(put, drop);
  if (!is_success(answer)) connection_->fail_status(answer, "put " + what, "201");
}

void Upload::move_tag(const std::string& tag, std::string_view media_type,
                      const std::optional<std::string>& before, const std::string& after) {
  // One step, so that no wait for another try lies between the look and the move.
  persist_in(place(tag), after.size(), [&](Until until) {
    const std::optional<std::string> now = tagged(tag);
    connection_->finish_by(until);  // the look had a time of its own
    if (now == after) return;       // the answer to a try was lost
    if (now != before) {
      throw Error(ErrorCode::kConflict,
                  "commit " + place(tag) + ": somebody published meanwhile: it names " +
                      (now ? Digest::of(*now).str() : "nothing") + ", expected " +
                      (before ? Digest::of(*before).str() : "nothing") +
                      "; it was left alone. Run it again");
    }
    try {
      put_document_once(tag, media_type, after, place(tag));
    } catch (const TryAgain&) {
      throw;
    } catch (const Error& error) {
      if (!before || error.code() != ErrorCode::kNetwork) throw;
      throw Error(error.code(), std::string(error.what()) + kTagsThatMove);
    }
  });
  const std::optional<std::string> found = tagged(tag);
  if (found == after) return;
  throw Error(ErrorCode::kIntegrity, "verify " + place(tag) + ": it names " +
                                         (found ? Digest::of(*found).str() : "nothing") +
                                         ", expected " + Digest::of(after).str() +
                                         ", as pushed. Is someone else publishing it? " + kAdvice);
}

}  // namespace kiln::registry
