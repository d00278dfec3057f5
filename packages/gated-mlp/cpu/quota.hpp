// SPDX-License-Identifier: Apache-2.0
//
// Quota: how many CPUs' worth of time the control groups grant this process. A container with a
// limit sees every CPU of its host; more threads than the limit only wait for each other. A limit
// may change while the process runs. No heap.
#pragma once

#include <limits.h>

namespace gated_mlp::cpu {

inline constexpr int kNoQuota = INT_MAX;

// Rounded up; kNoQuota where nothing limits it or no file says so. Reads cpu.max (cgroup v2) and
// cpu.cfs_quota_us (v1) from the process's own group up to the mount's root. `root` comes before
// each path: "" but in tests.
int quota_cpus(const char* root);

// The system's own, at most a tenth of a second old: reading it takes as long as a small call does.
// From any thread.
int recent_quota_cpus();

}  // namespace gated_mlp::cpu
