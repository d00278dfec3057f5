// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "base/fork.hpp"
#include "probe/driver.hpp"
#include "probe/library.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

// NVML's C interface, as far as it is used; its documentation freezes these versioned names.
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;

/// Open for one question: nvmlInit counts, so nested sessions of this process are fine.
struct Nvml : Library {
  Nvml() : Library("libnvidia-ml.so.1"), open(complete() && init() == kNvmlSuccess) {}
  ~Nvml() {
    if (open) shutdown();
    close();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  int (*init)() = need("nvmlInit_v2");
  int (*shutdown)() = need("nvmlShutdown");
  int (*cuda_version)(int*) = need("nvmlSystemGetCudaDriverVersion_v2");
  int (*count)(unsigned*) = need("nvmlDeviceGetCount_v2");
  int (*by_index)(unsigned, NvmlDevice*) = need("nvmlDeviceGetHandleByIndex_v2");
  int (*uuid)(NvmlDevice, char*, unsigned) = need("nvmlDeviceGetUUID");
  int (*name)(NvmlDevice, char*, unsigned) = need("nvmlDeviceGetName");
  int (*capability)(NvmlDevice, int*, int*) = need("nvmlDeviceGetCudaComputeCapability");
  // Absent before driver 450:
  int (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = find("nvmlDeviceGetMigMode");
  int (*max_instances)(NvmlDevice, unsigned*) = find("nvmlDeviceGetMaxMigDeviceCount");
  int (*instance)(NvmlDevice, unsigned, NvmlDevice*) = find("nvmlDeviceGetMigDeviceHandleByIndex");
  bool open;
};

/// A GPU, or an instance of one that is split by MIG.
struct Physical {
  std::string uuid;
  Gpu gpu;
  bool is_instance = false;
};

/// What one of NVML's functions writes of a device.
std::optional<std::string> text_of(NvmlDevice device, int (*ask)(NvmlDevice, char*, unsigned)) {
  std::array<char, 96> text{};
  if (ask(device, text.data(), static_cast<unsigned>(text.size())) != kNvmlSuccess) return {};
  return text.data();
}

std::optional<Physical> read_gpu(const Nvml& nvml, NvmlDevice device) {
  const std::optional<std::string> uuid = text_of(device, nvml.uuid);
  const std::optional<std::string> name = text_of(device, nvml.name);
  Version capability;
  if (!uuid || !name ||
      nvml.capability(device, &capability.major, &capability.minor) != kNvmlSuccess) {
    return std::nullopt;
  }
  return Physical{*uuid, {0, *name, capability}};
}

/// The instances of a GPU that is split. Their capability is the GPU's; NVML's name of one has its
/// profile, "NVIDIA H200 MIG 1g.18gb". An index without an instance is an error of NVML's.
void add_instances(const Nvml& nvml, NvmlDevice device, const Physical& parent,
                   std::vector<Physical>& all) {
  unsigned most = 0;
  if (!nvml.max_instances || !nvml.instance || nvml.max_instances(device, &most) != kNvmlSuccess) {
    return;
  }
  for (unsigned i = 0; i < most; ++i) {
    NvmlDevice handle = nullptr;
    if (nvml.instance(device, i, &handle) != kNvmlSuccess) continue;
    const std::optional<std::string> uuid = text_of(handle, nvml.uuid);
    if (!uuid) continue;
    Physical instance{*uuid, parent.gpu, true};
    instance.gpu.name = text_of(handle, nvml.name).value_or(parent.gpu.name + " MIG");
    all.push_back(std::move(instance));
  }
}

/// Every GPU of the machine in PCI order, or the instances of one that is split by MIG; nothing if
/// one cannot be read.
std::optional<std::vector<Physical>> read_gpus(const Nvml& nvml) {
  unsigned count = 0;
  if (nvml.count(&count) != kNvmlSuccess) return std::nullopt;
  std::vector<Physical> all;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (nvml.by_index(i, &device) != kNvmlSuccess) return std::nullopt;
    const std::optional<Physical> physical = read_gpu(nvml, device);
    if (!physical) return std::nullopt;
    unsigned current = 0;
    unsigned pending = 0;
    if (nvml.mig_mode && nvml.mig_mode(device, &current, &pending) == kNvmlSuccess &&
        current != 0) {
      add_instances(nvml, device, *physical, all);
    } else {
      all.push_back(*physical);
    }
  }
  return all;
}

/// CUDA_VISIBLE_DEVICES as CUDA reads it: entries up to the first that names nothing.
struct Visible {
  std::vector<std::size_t> positions;
  bool by_index = false;  ///< at least one entry is a number, which counts in CUDA's order
};

/// The only one whose UUID begins like this: a prefix is enough.
std::size_t find_uuid(const std::vector<Physical>& all, std::string_view prefix) {
  const auto matches = [&](const Physical& gpu) { return gpu.uuid.starts_with(prefix); };
  if (std::count_if(all.begin(), all.end(), matches) != 1) return all.size();
  return static_cast<std::size_t>(std::find_if(all.begin(), all.end(), matches) - all.begin());
}

Visible visible_gpus(const std::vector<Physical>& all, const char* list) {
  Visible visible;
  if (list == nullptr) {
    for (std::size_t i = 0; i < all.size(); ++i) visible.positions.push_back(i);
    visible.by_index = true;
    return visible;
  }
  std::string_view rest = list;
  while (!rest.empty()) {
    std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    std::size_t position = all.size();
    if (entry.starts_with("MIG-") || entry.starts_with("GPU-")) {
      position = find_uuid(all, entry);
    } else {
      const auto parsed = std::from_chars(entry.data(), entry.data() + entry.size(), position);
      if (parsed.ec != std::errc() || parsed.ptr != entry.data() + entry.size()) break;
      visible.by_index = true;
    }
    if (position >= all.size()) break;
    // CUDA shows no GPU at all if one is listed twice.
    if (std::count(visible.positions.begin(), visible.positions.end(), position) != 0) {
      visible.positions.clear();
      break;
    }
    visible.positions.push_back(position);
  }
  return visible;
}

/// CUDA shows one instance of MIG at most, and then nothing else (MIG User Guide, "CUDA Device
/// Enumeration"), which newer drivers may relax. So with instances NVML answers where exactly one
/// is all there is to see, or the one that is named; the rest is CUDA's to say.
bool needs_cuda_to_say(const std::vector<Physical>& all, const Visible& visible, const char* list) {
  const bool split =
      std::any_of(all.begin(), all.end(), [](const Physical& gpu) { return gpu.is_instance; });
  const bool names_instance =
      list != nullptr && std::string_view(list).find("MIG-") != std::string_view::npos;
  if (!split && !names_instance) return false;
  if (visible.positions.size() != 1) return true;
  return visible.by_index && all.size() != 1;
}

bool all_equal(const std::vector<Physical>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Physical& physical) {
    return physical.gpu.capability == all.front().gpu.capability &&
           physical.gpu.name == all.front().gpu.name;
  });
}

}  // namespace

std::optional<DriverFacts> ask_nvml() {
  const NoFork whole;
  const Nvml nvml;
  int version = 0;  // 1000 * major + 10 * minor
  if (!nvml.open || nvml.cuda_version(&version) != kNvmlSuccess) return std::nullopt;
  const std::optional<std::vector<Physical>> all = read_gpus(nvml);
  if (!all) return std::nullopt;
  const char* const list = environment().get("CUDA_VISIBLE_DEVICES");
  const Visible visible = visible_gpus(*all, list);
  const bool pci_order = environment().text("CUDA_DEVICE_ORDER") == "PCI_BUS_ID";
  if (needs_cuda_to_say(*all, visible, list) ||
      (visible.by_index && !pci_order && !all_equal(*all))) {
    return std::nullopt;
  }
  DriverFacts facts;
  facts.driver = Version{version / 1000, version % 1000 / 10};
  for (const std::size_t position : visible.positions) {
    facts.gpus.push_back((*all)[position].gpu);
    facts.gpus.back().ordinal = static_cast<int>(facts.gpus.size()) - 1;
  }
  return facts;
}

}  // namespace kiln
