// SPDX-License-Identifier: Apache-2.0
#include "probe/driver_error.hpp"

#include <algorithm>
#include <array>

namespace kiln {
namespace {

struct Meaning {
  int code;
  std::string_view cause;
  std::string_view cure;
};

constexpr std::array kMeanings = {
    Meaning{2, "the GPU has no memory left", "End what else uses it; nvidia-smi lists it"},
    Meaning{3,
            "CUDA was initialised before this process was forked, and does not work in the child",
            "Start the process anew in place of a fork (in Python, the start method 'spawn')"},
    Meaning{34, "this libcuda.so.1 is the toolkit's stub, which is for linkers",
            "Take the folder 'stubs' out of LD_LIBRARY_PATH"},
    Meaning{46, "another process has the GPU for itself, or it is being reset",
            "End that process, or set the compute mode: nvidia-smi -c DEFAULT"},
    Meaning{100, "it sees no GPU", "Check CUDA_VISIBLE_DEVICES, and /dev/nvidia* in a container"},
    Meaning{101, "it has no GPU of this number", "Check CUDA_VISIBLE_DEVICES; nvidia-smi -L"},
    Meaning{304, "the operating system refused a call of the driver",
            "Check the rights of /dev/nvidia*, and the limits of memory and descriptors"},
    Meaning{802, "the GPUs' switches are not set up yet",
            "Start nvidia-fabricmanager, of the driver's own version; without switches, restart"},
    Meaning{803,
            "libcuda.so.1 and the kernel's module are of different versions, as after an "
            "upgrade of the driver",
            "Restart the machine, or load the module again; in a container, take the host's "
            "libcuda.so.1"},
    Meaning{804, "libcuda.so.1 is one for forward compatibility, which this GPU does not have",
            "Take the folder 'compat' out of LD_LIBRARY_PATH, or remove cuda-compat"},
    Meaning{999, "the driver does not say why",
            "Run 'nvidia-modprobe -u -c=0', which makes its device files; 'dmesg' has its errors"},
};

}  // namespace

std::string describe_driver_error(std::string_view who, std::string_view name, int code) {
  std::string text(who);
  text.append(" says ").append(name).append(" (").append(std::to_string(code)).append(")");
  const auto* const known = std::ranges::find(kMeanings, code, &Meaning::code);
  if (known == kMeanings.end()) return text + ". nvidia-smi and 'dmesg' may say more";
  return text.append(": ").append(known->cause).append(". ").append(known->cure);
}

}  // namespace kiln
