// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <utility>

namespace gated_mlp_bench {
namespace {

using Json = nlohmann::ordered_json;

// Of cupti_activity.h: kinds and the fields that have had these places since CUPTI 11.
constexpr int kDriverCall = 4;
constexpr int kRuntimeCall = 5;
constexpr int kKernel = 10;  // concurrent kernels
constexpr int kDriverDomain = 1;
constexpr int kRuntimeDomain = 2;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

struct KernelRecord {
  std::uint32_t kind;
  std::uint8_t cache[2];
  std::uint16_t registers;
  std::uint32_t partitioned[2];
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t completed;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::int32_t grid[3];
  std::int32_t block[3];
  std::int32_t static_shared;
  std::int32_t dynamic_shared;
  std::uint32_t local[2];
  std::uint32_t correlation;
  std::int64_t grid_id;
  const char* name;
};
static_assert(offsetof(KernelRecord, begin) == 16 && offsetof(KernelRecord, stream) == 48 &&
              offsetof(KernelRecord, static_shared) == 76 &&
              offsetof(KernelRecord, correlation) == 92 && offsetof(KernelRecord, name) == 104);

struct CallRecord {
  std::uint32_t kind;
  std::uint32_t function;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t process;
  std::uint32_t thread;
  std::uint32_t correlation;
};

// CUPTI calls back without a context of the caller's: what it fills belongs to the one recorder.
const SharedLibrary* cupti = nullptr;
std::vector<Activity>* recorded = nullptr;

std::string triple(const std::int32_t (&of)[3]) {
  return std::to_string(of[0]) + "x" + std::to_string(of[1]) + "x" + std::to_string(of[2]);
}

Activity read_kernel(const KernelRecord& record) {
  const int shared = record.static_shared + record.dynamic_shared;
  return {.on_gpu = true,
          .name = record.name != nullptr ? record.name : "?",
          .begin = record.begin,
          .end = record.end,
          .lane = record.stream,
          .correlation = record.correlation,
          .detail = "grid " + triple(record.grid) + ", block " + triple(record.block) + ", " +
                    std::to_string(record.registers) + " registers, " +
                    std::to_string(shared / 1024) + " KB shared"};
}

Activity read_call(const CallRecord& record) {
  const char* name = nullptr;
  const int domain = record.kind == kDriverCall ? kDriverDomain : kRuntimeDomain;
  cupti->function<int(int, std::uint32_t, const char**)>("cuptiGetCallbackName")(
      domain, record.function, &name);
  return {.on_gpu = false,
          .name = name != nullptr ? name : "?",
          .begin = record.begin,
          .end = record.end,
          .lane = record.thread,
          .correlation = record.correlation,
          .detail = {}};
}

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;
}

void take_buffer(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  void* record = nullptr;
  const auto next =
      cupti->function<int(std::uint8_t*, std::size_t, void**)>("cuptiActivityGetNextRecord");
  while (recorded != nullptr && next(buffer, valid, &record) == 0) {
    std::uint32_t kind = 0;
    std::memcpy(&kind, record, sizeof(kind));
    if (kind == kKernel) recorded->push_back(read_kernel(*static_cast<KernelRecord*>(record)));
    if (kind == kDriverCall || kind == kRuntimeCall) {
      recorded->push_back(read_call(*static_cast<CallRecord*>(record)));
    }
  }
  std::free(buffer);
}

std::vector<Activity> activities;

}  // namespace

std::unique_ptr<Recorder> Recorder::find() {
  SharedLibrary library({"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"});
  if (!library.loaded()) return nullptr;
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(library)));
  cupti = &recorder->library_;
  return recorder;
}

Recorder::~Recorder() {
  recorded = nullptr;
  cupti = nullptr;
}

void Recorder::start() {
  if (!std::exchange(attached_, true)) {
    library_.call("cuptiActivityRegisterCallbacks", &give_buffer, &take_buffer);
  }
  activities.clear();
  recorded = &activities;
  for (const int kind : {kKernel, kDriverCall, kRuntimeCall}) {
    library_.call("cuptiActivityEnable", kind);
  }
}

void Recorder::discard() {
  library_.call("cuptiActivityFlushAll", 1U);
  activities.clear();
}

std::vector<Activity> Recorder::stop() {
  for (const int kind : {kKernel, kDriverCall, kRuntimeCall}) {
    library_.call("cuptiActivityDisable", kind);
  }
  library_.call("cuptiActivityFlushAll", 1U);
  recorded = nullptr;
  std::sort(activities.begin(), activities.end(),
            [](const Activity& a, const Activity& b) { return a.begin < b.begin; });
  return std::move(activities);
}

std::vector<std::string> kernels_of(const std::vector<Activity>& all) {
  std::vector<std::string> names;
  for (const Activity& activity : all) {
    if (activity.on_gpu) names.push_back(readable_name(activity.name));
  }
  return names;
}

std::string readable_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  const std::string full = status == 0 ? demangled.get() : symbol;
  std::string name;
  int depth = 0;  // of template arguments
  for (std::size_t at = 0; at < full.size(); ++at) {
    constexpr std::string_view kAnonymous = "(anonymous namespace)::";
    if (full.compare(at, kAnonymous.size(), kAnonymous) == 0) {
      at += kAnonymous.size() - 1;
      continue;
    }
    if (full[at] == '(' && depth == 0) break;
    if (full[at] == '<') ++depth;
    if (depth == 0) name += full[at];
    if (full[at] == '>') --depth;
  }
  return name.substr(name.rfind(' ') + 1);  // npos + 1 is 0: no return type
}

namespace {

/// The events of a trace. Lanes (Chrome's "threads") are numbered from 1: Perfetto takes 0 for the
/// idle thread.
class Events {
 public:
  Events() {
    describe("process_name", kHost, 0, "host");
    describe("process_name", kGpu, 0, "GPU");
    describe("thread_name", kHost, kForwards, "forwards");
  }

  void add(const Section& section) {
    if (section.activities.empty()) return;
    first_ = UINT64_MAX;
    std::uint64_t last = 0;
    for (const Activity& activity : section.activities) {
      first_ = std::min(first_, activity.begin);
      last = std::max(last, activity.end);
    }
    slice(section.name, "forward", kHost, kForwards, first_, last);
    for (const Activity& activity : section.activities) add(activity, section);
    start_ += length(first_, last) + kGap;
  }

  Json finish() && { return std::move(events_); }

 private:
  static constexpr int kHost = 1;
  static constexpr int kGpu = 2;
  static constexpr int kForwards = 1;
  static constexpr double kGap = 100;  // microseconds

  static double length(std::uint64_t begin, std::uint64_t end) {
    return static_cast<double>(end - begin) / 1000;
  }
  double at(std::uint64_t time) const { return start_ + length(first_, time); }

  void describe(const char* what, int process, int lane, const std::string& name) {
    events_.push_back(
        {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", lane}, {"args", {{"name", name}}}});
  }

  Json& slice(const std::string& name, const char* category, int process, int lane,
              std::uint64_t begin, std::uint64_t end) {
    events_.push_back({{"name", name},
                       {"cat", category},
                       {"ph", "X"},
                       {"ts", at(begin)},
                       {"dur", length(begin, end)},
                       {"pid", process},
                       {"tid", lane}});
    return events_.back();
  }

  void add(const Activity& activity, const Section& section) {
    const int process = activity.on_gpu ? kGpu : kHost;
    const int lane = lane_of(activity);
    // The runtime's calls have the version of their ABI in the name: cudaGetDevice_v3020.
    const std::string name = activity.on_gpu ? readable_name(activity.name)
                                             : activity.name.substr(0, activity.name.find("_v"));
    Json& event = slice(name, activity.on_gpu ? "kernel" : "call", process, lane, activity.begin,
                        activity.end);
    event["args"] = {{"contender", section.name}};
    if (!activity.on_gpu) return;
    event["args"]["launch"] = activity.detail;
    event["args"]["symbol"] = activity.name;
    const auto launched = [&](const Activity& call) {
      return !call.on_gpu && call.correlation == activity.correlation;
    };
    const auto call = std::find_if(section.activities.begin(), section.activities.end(), launched);
    if (call == section.activities.end()) return;
    arrow("s", kHost, lane_of(*call), call->begin, activity.correlation);
    arrow("f", kGpu, lane, activity.begin, activity.correlation);
    events_.back()["bp"] = "e";  // ends at the kernel that encloses this time, not at the next one
  }

  void arrow(const char* end, int process, int lane, std::uint64_t time, std::uint32_t id) {
    events_.push_back({{"name", "launch"},
                       {"cat", "launch"},
                       {"ph", end},
                       {"id", id},
                       {"ts", at(time)},
                       {"pid", process},
                       {"tid", lane}});
  }

  /// Thread and stream ids are large and mean nothing: 2, 3, … in the order of their first use.
  int lane_of(const Activity& activity) {
    const auto key = std::make_pair(activity.on_gpu, activity.lane);
    if (const auto known = lanes_.find(key); known != lanes_.end()) return known->second;
    const int lane = 2 + static_cast<int>(lanes_.size());
    lanes_.emplace(key, lane);
    if (activity.on_gpu) {
      describe("thread_name", kGpu, lane, "stream " + std::to_string(activity.lane));
    } else {
      describe("thread_name", kHost, lane, "calls of the driver and the runtime");
    }
    return lane;
  }

  Json events_ = Json::array();
  std::map<std::pair<bool, std::uint32_t>, int> lanes_;
  std::uint64_t first_ = 0;  ///< of the section that is being added
  double start_ = 0;         ///< where it stands in the trace
};

}  // namespace

void write_chrome_trace(const std::vector<Section>& sections, std::ostream& out) {
  Events events;
  for (const Section& section : sections) events.add(section);
  out << Json({{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events).finish()}}).dump()
      << '\n';
}

}  // namespace gated_mlp_bench
