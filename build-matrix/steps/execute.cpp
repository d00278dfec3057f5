// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/execute.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iomanip>
#include <map>
#include <mutex>
#include <ostream>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/digest.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const Step& step, const std::string& what) {
  throw Error(ErrorCode::kBuild, step.kind + " " + step.what + ": " + what);
}

/// With its length, so that no two lists of words make the same text.
void add_word(std::string& text, std::string_view word) {
  text.append(std::to_string(word.size())).append(":").append(word).append("\n");
}

void add_words(std::string& text, std::string_view name, const std::vector<std::string>& words) {
  text.append(name).append(" ").append(std::to_string(words.size())).append("\n");
  for (const std::string& word : words) add_word(text, word);
}

std::vector<std::string> placed(std::vector<std::string> words, const fs::path& folder) {
  for (std::string& word : words) {
    const std::size_t at = word.find(kOut);
    if (at != std::string::npos) word.replace(at, kOut.size(), folder.string());
  }
  return words;
}

class Execution {
 public:
  Execution(const std::vector<Step>& steps, Sources& sources, const fs::path& scratch,
            std::ostream& progress)
      : steps_(steps),
        sources_(sources),
        // Its own: what a killed build's compilers still write is beside it.
        scratch_(scratch / unique_suffix()),
        progress_(progress) {
    std::map<fs::path, std::size_t> makers;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const std::string& name : steps[i].outputs) makers[steps[i].folder / name] = i;
    }
    waiting_.resize(steps.size());
    users_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const fs::path& input : steps[i].inputs) {
        const auto maker = makers.find(input);
        if (maker != makers.end() && users_[maker->second].insert(i).second) ++waiting_[i];
      }
      if (waiting_[i] == 0) ready_.insert(i);
    }
  }

  std::vector<Took> run(unsigned jobs) {
    std::vector<std::thread> threads;
    try {
      while (threads.size() + 1 < std::min<std::size_t>(jobs, steps_.size())) {
        threads.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {  // this process may have no more: those do it
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(took_);
  }

 private:
  /// A thread's life: steps, in the graph's order, until there are none or one has failed.
  void work() {
    std::unique_lock guard(lock_);
    while (true) {
      changed_.wait(guard,
                    [this] { return failure_ || !ready_.empty() || done_ == steps_.size(); });
      if (failure_ || done_ == steps_.size()) return;
      const std::size_t next = *ready_.begin();
      ready_.erase(ready_.begin());
      guard.unlock();
      std::exception_ptr failure;
      try {
        perform(steps_[next], next);
      } catch (...) {
        failure = std::current_exception();
      }
      guard.lock();
      if (failure && !failure_) failure_ = failure;
      ++done_;
      for (const std::size_t user : users_[next]) {
        if (--waiting_[user] == 0) ready_.insert(user);
      }
      changed_.notify_all();
    }
  }

  void perform(const Step& step, std::size_t number) {
    std::map<fs::path, std::string> files;
    for (const fs::path& path : files_of(step)) files.emplace(path, digest(path));
    const std::string key = key_of(step, files);
    if (is_there(step, key)) return;
    const fs::path folder = scratch_ / std::to_string(number);
    fs::create_directories(folder);
    run_command(step, folder);
    check_unchanged(step, files);
    check_read_list(step, files, folder);
    publish(step, key, folder);
    fs::remove_all(folder);
  }

  std::set<fs::path> files_of(const Step& step) {
    if (!step.searched.empty()) return sources_.closure(step.inputs, step.searched);
    return {step.inputs.begin(), step.inputs.end()};
  }

  std::string digest(const fs::path& path) {
    {
      const std::lock_guard guard(lock_);
      const auto made = made_.find(path);
      if (made != made_.end()) return made->second;
    }
    return sources_.digest(path).hex();
  }

  static std::string key_of(const Step& step, const std::map<fs::path, std::string>& files) {
    std::string text = "kiln.step/1\n";
    add_words(text, "command", step.command);
    add_words(text, "environment", step.environment);
    add_words(text, "outputs", step.outputs);
    add_words(text, "absent", step.absent);
    add_word(text, step.tool);
    for (const auto& [path, hex] : files) {
      add_word(text, path.string());
      add_word(text, hex);
    }
    return Digest::of(text).hex();
  }

  static std::string stamp_head(const std::string& key) {
    return "kiln.stamp/1\nkey " + key + "\n";
  }

  /// Notes what the outputs are, if they are those of the stamp.
  bool is_there(const Step& step, const std::string& key) {
    std::error_code failed;
    if (!fs::is_regular_file(step.stamp, failed)) return false;
    const std::string stamp = read_file(step.stamp);
    std::string expected = stamp_head(key);
    if (!stamp.starts_with(expected)) return false;
    for (const std::string& name : step.absent) {
      if (fs::exists(fs::symlink_status(step.folder / name, failed))) return false;
    }
    std::map<fs::path, std::string> found;
    for (const std::string& name : step.outputs) {
      const fs::path path = step.folder / name;
      if (!fs::is_regular_file(path, failed)) return false;
      const std::string& hex = found[path] = Digest::of(read_file(path)).hex();
      expected.append(hex).append(" ").append(name).append("\n");
    }
    if (stamp != expected) return false;
    const std::lock_guard guard(lock_);
    made_.merge(found);
    return true;
  }

  void run_command(const Step& step, const fs::path& folder) {
    const std::vector<std::string> command = placed(step.command, folder);
    std::vector<std::string> environment = placed(step.environment, folder);
    environment.push_back("TMPDIR=" + folder.string());  // in no key: it differs in each run
    const Finished finished = run_captured(command, std::move(environment));
    const std::lock_guard guard(lock_);
    took_.push_back({step.kind, step.what, finished.cpu_seconds});
    progress_ << "[" << done_ + 1 << "/" << steps_.size() << "] " << step.kind << " " << step.what
              << "\n";
    const std::string said = printable_lines(finished.output);
    if (finished.status == 0) {
      progress_ << said << std::flush;
      return;
    }
    // In the error, which -q and --json have, too.
    const std::string hint = explain_undefined(finished.output);
    fail(step, "it ended with status " + std::to_string(finished.status) + ". It said:\n" + said +
                   (hint.empty() ? "" : hint + "\n") + "The command was:\n" +
                   join(command, " ", shell_word));
  }

  static void check_unchanged(const Step& step, const std::map<fs::path, std::string>& files) {
    for (const auto& [path, hex] : files) {
      std::error_code failed;
      if (fs::is_regular_file(path, failed) && Digest::of(read_file(path)).hex() == hex) continue;
      fail(step, path.string() +
                     " was changed while the build read it; nothing of it was kept. Build again");
    }
  }

  /// The compiler must not have read what the build id does not cover.
  static void check_read_list(const Step& step, const std::map<fs::path, std::string>& files,
                              const fs::path& folder) {
    const fs::path list = folder / kReadList;
    if (!fs::exists(list)) return;
    std::set<fs::path> known;
    for (const auto& file : files) known.insert(fs::weakly_canonical(file.first));
    const fs::path tool = fs::weakly_canonical(step.tool_folder);
    for (const fs::path& read : parse_read_list(read_file(list))) {
      const fs::path path = fs::weakly_canonical(read);
      if (known.contains(path) || !below(tool, path).empty()) continue;
      fail(step, "the compiler read " + path.string() +
                     (step.kind == "triton"
                          ? ", which is no .py file of the source's folder, so that the build id "
                            "does not cover it. Let such a file there hold what it says"
                          : ", which no #include that the build follows names, so that the build "
                            "id does not cover it. Include it by its name, or take it out of the "
                            "way"));
    }
  }

  void publish(const Step& step, const std::string& key, const fs::path& folder) {
    std::map<fs::path, std::string> made;
    std::string stamp = stamp_head(key);
    for (const std::string& name : step.outputs) {
      if (!fs::is_regular_file(folder / name)) {
        fail(step, "it ended well and made no " + name + ". The command was:\n" +
                       join(placed(step.command, folder), " ", shell_word));
      }
      const std::string& hex = made[step.folder / name] =
          Digest::of(read_file(folder / name)).hex();
      stamp.append(hex).append(" ").append(name).append("\n");
    }
    fs::create_directories(step.folder);
    for (const std::string& name : step.absent) fs::remove_all(step.folder / name);
    fs::remove_all(step.folder / step.outputs.back());  // a folder that has the last one has all
    for (const std::string& name : step.outputs) {
      if (fs::is_directory(step.folder / name)) fs::remove_all(step.folder / name);
      fs::rename(folder / name, step.folder / name);
    }
    write_file(step.stamp, stamp);
    const std::lock_guard guard(lock_);
    made_.merge(made);
  }

  const std::vector<Step>& steps_;
  Sources& sources_;
  const fs::path scratch_;
  std::ostream& progress_;
  std::mutex lock_;  // of all below, and of progress_
  std::condition_variable changed_;
  std::vector<std::set<std::size_t>> users_;
  std::vector<std::size_t> waiting_;  // for how many others a step waits
  std::set<std::size_t> ready_;
  std::size_t done_ = 0;
  std::exception_ptr failure_;
  std::map<fs::path, std::string> made_;  // outputs, and their digests
  std::vector<Took> took_;
};

}  // namespace

std::vector<Took> execute(const std::vector<Step>& steps, Sources& sources, const fs::path& scratch,
                          unsigned jobs, std::ostream& progress) {
  struct Emptied {
    const fs::path& folder;
    std::error_code ignored = {};
    explicit Emptied(const fs::path& path) : folder(path) { fs::remove_all(folder, ignored); }
    ~Emptied() { fs::remove_all(folder, ignored); }
  } emptied(scratch);
  try {
    return Execution(steps, sources, scratch, progress).run(jobs);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kBuild, std::string("build: ") + error.what());
  }
}

void print_timings(std::vector<Took> took, std::ostream& out) {
  constexpr std::size_t kSlowest = 10;
  struct Sum {
    std::size_t steps = 0;
    double cpu_seconds = 0;
  };
  std::map<std::string, Sum> kinds;
  Sum all;
  for (const Took& one : took) {
    for (Sum* sum : {&kinds[one.kind], &all}) {
      ++sum->steps;
      sum->cpu_seconds += one.cpu_seconds;
    }
  }
  const auto line = [&out](const std::string& name, const Sum& sum) {
    out << "  " << std::left << std::setw(10) << name << std::right << std::setw(6) << sum.steps
        << " steps" << std::fixed << std::setprecision(1) << std::setw(10) << sum.cpu_seconds
        << " s of CPU\n";
  };
  for (const auto& [kind, sum] : kinds) line(kind, sum);
  line("all", all);
  std::ranges::sort(took, std::greater(), &Took::cpu_seconds);
  if (took.size() > kSlowest) took.resize(kSlowest);
  for (const Took& one : took) {
    out << "  " << std::fixed << std::setprecision(1) << std::setw(8) << one.cpu_seconds << " s  "
        << one.kind << " " << one.what << "\n";
  }
}

}  // namespace kiln::build
