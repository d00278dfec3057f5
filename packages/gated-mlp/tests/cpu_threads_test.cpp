// SPDX-License-Identifier: Apache-2.0
//
// The CPU kernels' threads: how many a call gets, which are kept, and what a team promises of
// its regions. The system is fake_system.hpp's, by the linker's --wrap.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cpu/quota.hpp"
#include "cpu/threads.hpp"
#include "fake_system.hpp"

namespace {

using gated_mlp::cpu::kNoQuota;
using gated_mlp::cpu::quota_cpus;
using gated_mlp::cpu::run_team;
using gated_mlp::cpu::Team;
using gated_mlp::cpu::threads_for;
using gated_mlp::cpu::threads_named;
using gated_mlp_test::FakeSystem;

const bool kIsBounded = getenv("KILN_TEST_BOUNDED") != nullptr;
// It would bound every other row.
[[maybe_unused]] const int kUnset = kIsBounded ? 0 : unsetenv("OMP_NUM_THREADS");

constexpr double kLarge = 1e9;      // worth any number of threads
constexpr int64_t kMany = 1 << 20;  // items

int quota_of(const FakeSystem& fake) {
  return quota_cpus(fake.root().c_str());
}

TEST_CASE("a call gets what is least: CPUs, quota, items, what it is worth") {
  struct Row {
    const char* what;
    int cpus;
    const char* quota;  // cpu.max
    double worth;
    int64_t items;
    int threads;
  };
  for (const Row& row : {Row{"CPUs", 2, "max 100000", kLarge, kMany, 2},
                         Row{"CPUs", 16, "max 100000", kLarge, kMany, 16},
                         Row{"CPUs", 64, "max 100000", kLarge, kMany, 64},
                         Row{"no more than the team holds", 1000, "max 100000", kLarge, kMany, 256},
                         Row{"more CPUs than a cpu_set_t", 1500, "max 100000", kLarge, 5, 5},
                         Row{"quota", 64, "400000 100000", kLarge, kMany, 4},
                         Row{"a part of a CPU more", 64, "250000 100000", kLarge, kMany, 3},
                         Row{"a part of one CPU", 64, "5000 100000", kLarge, kMany, 1},
                         Row{"a quota beyond the CPUs", 2, "400000 100000", kLarge, kMany, 2},
                         Row{"items", 64, "max 100000", kLarge, 7, 7},
                         Row{"no items", 64, "max 100000", kLarge, 0, 1},
                         Row{"worth", 64, "max 100000", 3.9, kMany, 3},
                         Row{"not worth a second", 64, "max 100000", 1.9, kMany, 1},
                         Row{"worth nothing", 64, "max 100000", 0, kMany, 1}}) {
    CAPTURE(row.what);
    CAPTURE(row.cpus);
    const FakeSystem fake(row.cpus);
    fake.write("proc/self/cgroup", "0::/\n");
    fake.write("sys/fs/cgroup/cpu.max", row.quota);
    CHECK(threads_for(row.worth, row.items) == row.threads);
  }
}

TEST_CASE("the bound that a call names only lowers what it gets") {
  struct Row {
    int cpus;
    const char* quota;  // cpu.max
    uint32_t bound;
    int threads;
  };
  for (const Row& row :
       {Row{64, "max 100000", 0, 64}, Row{64, "max 100000", 3, 3}, Row{64, "max 100000", 1, 1},
        Row{2, "max 100000", 3, 2}, Row{64, "400000 100000", 8, 4}, Row{64, "400000 100000", 2, 2},
        Row{1000, "max 100000", 4000000000U, 256}}) {
    CAPTURE(row.cpus);
    CAPTURE(row.bound);
    const FakeSystem fake(row.cpus);
    fake.write("proc/self/cgroup", "0::/\n");
    fake.write("sys/fs/cgroup/cpu.max", row.quota);
    CHECK(threads_for(kLarge, kMany, row.bound) == row.threads);
  }
  const FakeSystem fake(64);
  CHECK(threads_for(kLarge, kMany, 1) == 1);
  CHECK(fake.asked == 0);
}

TEST_CASE("OMP_NUM_THREADS is a number, or a list that begins with one") {
  struct Row {
    const char* words;
    int threads;
  };
  for (const Row& row :
       {Row{nullptr, 0}, Row{"", 0}, Row{"1", 1}, Row{"12", 12}, Row{" 3 ", 3}, Row{"4,2", 4},
        Row{"4 ,2", 4}, Row{"100000", 256}, Row{"0", 0}, Row{"-2", 0}, Row{"two", 0}, Row{"2x", 0},
        Row{",2", 0}, Row{"99999999999999999999", 256}}) {
    CAPTURE((row.words == nullptr ? "(unset)" : row.words));
    CHECK(threads_named(row.words) == row.threads);
  }
}

TEST_CASE("in a process with OMP_NUM_THREADS=3" * doctest::skip(!kIsBounded)) {
  const FakeSystem fake(64);
  fake.write("proc/self/cgroup", "0::/\n");
  CHECK(threads_for(kLarge, kMany) == 3);
  CHECK(threads_for(2.5, kMany) == 2);
  CHECK(threads_for(kLarge, kMany, 2) == 2);
  CHECK(threads_for(kLarge, kMany, 9) == 3);
  setenv("OMP_NUM_THREADS", "1", 1);  // it is read once
  CHECK(threads_for(kLarge, kMany) == 3);
}

TEST_CASE("OMP_NUM_THREADS bounds a call") {
  char self[4096] = {};
  REQUIRE(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
  const std::string command = "KILN_TEST_BOUNDED=1 OMP_NUM_THREADS=3 '" + std::string(self) +
                              "' -tc='in a process with*' > /dev/null";
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("a small call asks the system nothing") {
  const FakeSystem fake(64);
  CHECK(threads_for(1.5, kMany) == 1);
  CHECK(threads_for(kLarge, 1) == 1);
  CHECK(fake.asked == 0);
}

TEST_CASE("the quota is read at most ten times a second") {
  const FakeSystem fake(64);
  fake.write("proc/self/cgroup", "0::/\n");
  fake.write("sys/fs/cgroup/cpu.max", "400000 100000");
  CHECK(threads_for(kLarge, kMany) == 4);
  fake.write("sys/fs/cgroup/cpu.max", "800000 100000");
  const int asked = fake.asked;
  CHECK(threads_for(kLarge, kMany) == 4);
  CHECK(fake.asked == asked + 1);  // for the mask, which is one system call
  fake.wait(110);
  CHECK(threads_for(kLarge, kMany) == 8);
}

TEST_CASE("the quota is the least from the process's group up to the root") {
  const FakeSystem fake(64);
  SUBCASE("no control groups") {
    CHECK(quota_of(fake) == kNoQuota);
  }
  SUBCASE("v2: a group under a limited one") {
    fake.write("proc/self/cgroup", "0::/pod/container\n");
    fake.write("sys/fs/cgroup/pod/container/cpu.max", "800000 100000\n");
    fake.write("sys/fs/cgroup/pod/cpu.max", "600000 200000\n");
    fake.write("sys/fs/cgroup/cpu.max", "max 100000\n");
    CHECK(quota_of(fake) == 3);
  }
  SUBCASE("v2: the host's name for a group that is mounted as the root") {
    fake.write("proc/self/cgroup", "0::/system.slice/docker-1.scope\n");
    fake.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
    CHECK(quota_of(fake) == 2);
  }
  SUBCASE("v1, beside controllers of like names and an empty v2") {
    fake.write("proc/self/cgroup",
               "5:cpuset:/set\n4:cpuacct,cpu:/pod/container\n1:name=systemd:/\n0::/\n");
    fake.write("sys/fs/cgroup/cpu/set/cpu.cfs_quota_us", "100000\n");
    fake.write("sys/fs/cgroup/cpu/set/cpu.cfs_period_us", "100000\n");
    fake.write("sys/fs/cgroup/cpu/pod/container/cpu.cfs_quota_us", "-1\n");
    fake.write("sys/fs/cgroup/cpu/pod/container/cpu.cfs_period_us", "100000\n");
    fake.write("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "150000\n");
    fake.write("sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "50000\n");
    CHECK(quota_of(fake) == 3);
  }
  SUBCASE("text that is no quota") {
    for (const char* text : {"", "max", "100000", "x y\n", "100000 0\n", "-5 100000\n"}) {
      CAPTURE(text);
      fake.write("proc/self/cgroup", "0::/\n");
      fake.write("sys/fs/cgroup/cpu.max", text);
      CHECK(quota_of(fake) == kNoQuota);
    }
  }
  SUBCASE("lines that are no group") {
    fake.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
    for (const char* text : {"", "\n", "0", "0:", "0::", "0::pod", ":::", "1:cpu\n"}) {
      CAPTURE(text);
      fake.write("proc/self/cgroup", text);
      CHECK(quota_of(fake) == kNoQuota);
    }
  }
  SUBCASE("a path longer than any") {
    fake.write("proc/self/cgroup", "0::/" + std::string(5000, 'x') + "\n");
    CHECK(quota_of(fake) == kNoQuota);
  }
}

// Each region reads what the one before it wrote, at other items.
void check_regions(int threads, int64_t items) {
  constexpr int kRegions = 50;
  const auto count = static_cast<std::size_t>(items);
  std::vector<int64_t> even(count, 0);
  std::vector<int64_t> odd(count, 0);
  run_team(threads, [&](Team& team) {
    for (int region = 0; region < kRegions; ++region) {
      const std::vector<int64_t>& from = region % 2 == 0 ? even : odd;
      std::vector<int64_t>& to = region % 2 == 0 ? odd : even;
      team.for_each_item(items, [&](int64_t item) {
        to[static_cast<std::size_t>(item)] = from[static_cast<std::size_t>(items - 1 - item)] + 1;
      });
    }
  });
  for (const int64_t value : even) CHECK(value == kRegions);
}

// What each thread of a team finds; every thread takes part, whoever takes the items.
template <class Value, class Look>
std::vector<Value> of_each_thread(int threads, const Look& look) {
  std::mutex lock;
  std::vector<Value> found;
  run_team(threads, [&](Team& team) {
    {
      const std::lock_guard hold(lock);
      found.push_back(look());
    }
    team.for_each_item(0, [](int64_t) {});
  });
  return found;
}

int threads_in(int threads) {
  const std::vector<pid_t> ids = of_each_thread<pid_t>(threads, gettid);
  const std::set<pid_t> distinct(ids.begin(), ids.end());
  CHECK(distinct.size() == ids.size());
  CHECK(distinct.count(gettid()) == 1);
  return static_cast<int>(distinct.size());
}

TEST_CASE("a call has as many threads as it may use, and makes none that is kept") {
  for (const int cpus : {1, 2, 16, 64}) {
    CAPTURE(cpus);
    const FakeSystem fake(cpus);
    CHECK(threads_in(threads_for(kLarge, kMany)) == cpus);
    const int created = fake.created;
    CHECK(created < cpus);
    check_regions(threads_for(kLarge, kMany), 300);
    CHECK(threads_in(threads_for(kLarge, kMany)) == cpus);
    CHECK(fake.created == created);
  }
}

TEST_CASE("regions with fewer items than threads, and with none") {
  for (const int64_t items : {0, 1, 3, 8, 9}) check_regions(8, items);
}

TEST_CASE("where the system gives fewer threads, fewer do the work") {
  int before = 0;
  for (const int given : {0, 1, 5}) {
    CAPTURE(given);
    FakeSystem fake(256);
    fake.most_created = given;
    const int threads = threads_in(256);
    if (before != 0) CHECK(threads == before + given);
    before = threads;
    CHECK(fake.created == given + 1);  // and does not ask again
    fake.most_created = 0;
    check_regions(256, 100);
  }
}

TEST_CASE("callers at one time have teams of their own") {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([] {
      for (int call = 0; call < 50; ++call) check_regions(4, 20);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_CASE("a worker runs where its caller may") {
  using Cpus = std::array<cpu_set_t, 8>;
  const auto look = [] {
    Cpus cpus = {};
    sched_getaffinity(0, sizeof(cpus), cpus.data());
    return cpus;
  };
  const auto same = [](const Cpus& a, const Cpus& b) {
    return CPU_EQUAL_S(sizeof(a), a.data(), b.data()) != 0;
  };
  const Cpus all = look();
  Cpus one = {};
  for (std::size_t cpu = 0; CPU_COUNT_S(sizeof(one), one.data()) == 0; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof(all), all.data())) CPU_SET_S(cpu, sizeof(one), one.data());
  }
  for (const Cpus& cpus : {all, one, all}) {
    REQUIRE(sched_setaffinity(0, sizeof(cpus), cpus.data()) == 0);
    const std::vector<Cpus> found = of_each_thread<Cpus>(3, look);
    CHECK(found.size() == 3);
    for (const Cpus& of_thread : found) CHECK(same(of_thread, cpus));
  }
}

#if defined(__x86_64__)
TEST_CASE("a worker computes in its caller's modes") {
  constexpr unsigned kFlushToZero = 0x8000;
  const unsigned before = __builtin_ia32_stmxcsr();
  const auto halved = [] {
    volatile float least = 1.17549435e-38f;
    return least / 2;
  };
  for (const bool flushes : {false, true, false}) {
    __builtin_ia32_ldmxcsr(flushes ? before | kFlushToZero : before & ~kFlushToZero);
    const std::vector<float> found = of_each_thread<float>(3, halved);
    __builtin_ia32_ldmxcsr(before);
    CHECK(found.size() == 3);
    for (const float value : found) CHECK((value == 0) == flushes);
  }
}
#endif

TEST_CASE("the program's signals are none of a worker's") {
  const std::vector<int> blocks = of_each_thread<int>(3, [] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&mask, SIGUSR1);
  });
  CHECK(blocks.size() == 3);
  CHECK(std::accumulate(blocks.begin(), blocks.end(), 0) == 2);  // not of the caller
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("the child of a fork makes workers of its own") {
  check_regions(4, 20);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const FakeSystem fake(4);
    check_regions(4, 20);
    const bool right = threads_in(4) == 4 && fake.created == 3;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  check_regions(4, 20);
}
#endif

}  // namespace
