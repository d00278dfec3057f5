// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>

namespace geglu_mlp_bench {
namespace {

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

std::unique_ptr<Recorder> Recorder::find(std::string& reason) {
  SharedLibrary library({"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"});
  if (!library.loaded()) {
    reason = "libcupti.so is not on the library path (it comes with the CUDA Toolkit)";
    return nullptr;
  }
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(library)));
  cupti = &recorder->library_;
  try {
    cupti->call("cuptiActivityRegisterCallbacks", &give_buffer, &take_buffer);
    cupti->call("cuptiActivityEnable", kKernel);
    cupti->call("cuptiActivityDisable", kKernel);
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
  return recorder;
}

Recorder::~Recorder() {
  recorded = nullptr;
  cupti = nullptr;
}

void Recorder::start() {
  activities.clear();
  recorded = &activities;
  for (const int kind : {kKernel, kDriverCall, kRuntimeCall}) {
    library_.call("cuptiActivityEnable", kind);
  }
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
    if (activity.on_gpu) names.push_back(activity.name);
  }
  return names;
}

std::string short_name(const std::string& kernel, std::size_t most) {
  std::string name = kernel.substr(0, kernel.find_first_of("(<"));
  if (const std::size_t space = name.rfind(' '); space != std::string::npos)
    name.erase(0, space + 1);
  if (name.size() > most) name = name.substr(0, most - 3) + "...";
  return name;
}

void write_chrome_trace(const std::vector<Section>& sections, std::ostream& out) {
  using Json = nlohmann::ordered_json;
  constexpr int kHost = 1;
  constexpr int kGpu = 2;
  std::uint64_t first = UINT64_MAX;
  for (const Section& section : sections) {
    for (const Activity& activity : section.activities) first = std::min(first, activity.begin);
  }
  const auto microseconds = [&](std::uint64_t nanoseconds) {
    return static_cast<double>(nanoseconds - first) / 1000.0;
  };
  Json events = Json::array();
  const auto describe = [&](const char* what, int process, std::uint32_t thread,
                            const std::string& name) {
    events.push_back({{"name", what},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", thread},
                      {"args", {{"name", name}}}});
  };
  describe("process_name", kHost, 0, "host");
  describe("process_name", kGpu, 0, "GPU");
  std::vector<std::uint32_t> streams;
  for (const Section& section : sections) {
    std::uint64_t begin = UINT64_MAX;
    std::uint64_t end = 0;
    for (const Activity& activity : section.activities) {
      begin = std::min(begin, activity.begin);
      end = std::max(end, activity.end);
      const int process = activity.on_gpu ? kGpu : kHost;
      Json event = {{"name", activity.name},
                    {"cat", activity.on_gpu ? "kernel" : "call"},
                    {"ph", "X"},
                    {"ts", microseconds(activity.begin)},
                    {"dur", static_cast<double>(activity.end - activity.begin) / 1000.0},
                    {"pid", process},
                    {"tid", activity.lane},
                    {"args", {{"contender", section.name}}}};
      if (!activity.detail.empty()) event["args"]["launch"] = activity.detail;
      events.push_back(std::move(event));
      if (!activity.on_gpu) continue;
      if (std::find(streams.begin(), streams.end(), activity.lane) == streams.end()) {
        streams.push_back(activity.lane);
        describe("thread_name", kGpu, activity.lane, "stream " + std::to_string(activity.lane));
      }
      for (const Activity& call : section.activities) {
        if (call.on_gpu || call.correlation != activity.correlation) continue;
        events.push_back({{"name", "launch"},
                          {"cat", "launch"},
                          {"ph", "s"},
                          {"id", activity.correlation},
                          {"ts", microseconds(call.begin)},
                          {"pid", kHost},
                          {"tid", call.lane}});
        events.push_back({{"name", "launch"},
                          {"cat", "launch"},
                          {"ph", "f"},
                          {"bp", "e"},
                          {"id", activity.correlation},
                          {"ts", microseconds(activity.begin)},
                          {"pid", kGpu},
                          {"tid", activity.lane}});
        break;
      }
    }
    if (end == 0) continue;
    events.push_back({{"name", section.name},
                      {"cat", "forward"},
                      {"ph", "X"},
                      {"ts", microseconds(begin)},
                      {"dur", static_cast<double>(end - begin) / 1000.0},
                      {"pid", kHost},
                      {"tid", 0}});
  }
  describe("thread_name", kHost, 0, "forward");
  out << Json({{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}}).dump() << '\n';
}

}  // namespace geglu_mlp_bench
