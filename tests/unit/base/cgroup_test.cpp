#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace trainer {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  std::map<std::string, std::string> files;  // below the root of the file system
  std::optional<int64_t> memory;
  std::optional<double> cores;
};

const std::string kUnlimited = "9223372036854771712\n";  // version 1: LONG_MAX in whole pages
const std::string kStep = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n";
const std::string kJob = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/";
const std::string kMounted2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

std::string mounted1(const std::string& root, const std::string& controllers) {
  return "31 30 0:27 " + root + " /sys/fs/cgroup/" + controllers + " rw shared:9 - cgroup cgroup rw," + controllers +
         "\n";
}

const Case kCases[] = {
    {"no files", {}, {}, {}},
    {"no group is limited",
     {{"proc/self/cgroup", "0::/user.slice\n"},
      {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
      {"sys/fs/cgroup/user.slice/memory.current", "5000\n"},
      {"sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"}},
     {},
     {}},
    {"container with a cgroup namespace",
     {{"proc/self/cgroup", "0::/\n"},
      {"proc/self/mountinfo", kMounted2},
      {"sys/fs/cgroup/memory.max", "209715200\n"},
      {"sys/fs/cgroup/memory.current", "9715200\n"},
      {"sys/fs/cgroup/cpu.max", "150000 100000\n"}},
     200000000,
     1.5},
    {"version 2: the limits of a Slurm job, the step's folder is hidden",
     {{"proc/self/cgroup", kStep},
      {kJob + "memory.max", "1000\n"},
      {kJob + "memory.current", "100\n"},
      {kJob + "cpu.max", "400000 100000\n"}},
     900,
     4.0},
    {"version 2, nested: each resource has its own tightest group, and what is left counts",
     {{"proc/self/cgroup", "0::/a/b/c\n"},
      {"proc/self/mountinfo", kMounted2},
      {"sys/fs/cgroup/a/memory.max", "10000\n"},
      {"sys/fs/cgroup/a/memory.current", "9500\n"},
      {"sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
      {"sys/fs/cgroup/a/b/memory.max", "5000\n"},
      {"sys/fs/cgroup/a/b/memory.current", "4000\n"},
      {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
      {"sys/fs/cgroup/a/b/c/memory.max", "max\n"},
      {"sys/fs/cgroup/a/b/c/memory.current", "1\n"},
      {"sys/fs/cgroup/a/b/c/cpu.max", "50000 20000\n"},
      {"sys/fs/cgroup/other/memory.max", "1\n"}},
     500,
     2.0},
    {"version 2: page cache can be dropped, memory.high slows down as memory.max ends",
     {{"proc/self/cgroup", "0::/run.scope\n"},
      {"sys/fs/cgroup/run.scope/memory.max", "9000\n"},
      {"sys/fs/cgroup/run.scope/memory.high", "8000\n"},
      {"sys/fs/cgroup/run.scope/memory.current", "7000\n"},
      {"sys/fs/cgroup/run.scope/memory.stat", "anon 1000\nfile 6000\ninactive_file 4000\nactive_file 1500\n"}},
     6500,
     {}},
    {"a limit that is exceeded, and without a count of what is used",
     {{"proc/self/cgroup", "0::/a\n"},
      {"sys/fs/cgroup/memory.max", "4000\n"},
      {"sys/fs/cgroup/a/memory.max", "1000\n"},
      {"sys/fs/cgroup/a/memory.current", "1200\n"}},
     0,
     {}},
    {"version 1: a Slurm job",
     {{"proc/self/cgroup", "4:memory:/slurm/uid_0/job_7/step_0\n3:cpu,cpuacct:/slurm/uid_0/job_7\n0::/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "123456\n"},
      {"sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "1000\n"},
      {"sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.usage_in_bytes", "700\n"},
      {"sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.stat",
       "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200\n"},
      {"sys/fs/cgroup/cpu,cpuacct/slurm/uid_0/cpu.cfs_quota_us", "-1\n"},
      {"sys/fs/cgroup/cpu,cpuacct/slurm/uid_0/job_7/cpu.cfs_quota_us", "250000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/slurm/uid_0/job_7/cpu.cfs_period_us", "50000\n"}},
     600,
     5.0},
    {"version 1: the mount point of a container is its own group, with a group below",
     {{"proc/self/cgroup", "4:memory:/docker/abc/run\n3:cpu:/docker/abc\n"},
      {"proc/self/mountinfo", mounted1("/docker/abc", "memory") + mounted1("/docker/abc", "cpu")},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n"},
      {"sys/fs/cgroup/memory/run/memory.limit_in_bytes", "3000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "10000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     3000,
     0.1},
    {"version 1: unlimited",
     {{"proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/\n2:cpuset:/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     9223372036854771707,
     {}},
    {"hybrid: version 1 limits memory, version 2 is mounted elsewhere",
     {{"proc/self/cgroup", "4:memory:/lxc/a\n1:name=systemd:/lxc/a\n0::/lxc/a\n"},
      {"proc/self/mountinfo",
       mounted1("/", "memory") + "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {"sys/fs/cgroup/memory/lxc/a/memory.limit_in_bytes", "7000\n"},
      {"sys/fs/cgroup/unified/lxc/cpu.max", "300000 100000\n"}},
     7000,
     3.0},
    {"a mount point of its own",
     {{"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", "30 24 0:26 / /mnt/groups rw - cgroup2 none rw\n"},
      {"mnt/groups/a/memory.max", "70\n"}},
     70,
     {}},
    {"a group outside of the namespace",
     {{"proc/self/cgroup", "0::/../../a\n"}, {"memory.max", "1\n"}, {"sys/fs/cgroup/memory.max", "50\n"}},
     50,
     {}},
};

TEST(GroupLimits, AreTheTightestOfTheGroupAndItsAncestors) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    const fs::path root = fs::temp_directory_path() / ("cgroup-" + std::to_string(getpid()));
    fs::create_directories(root);
    for (const auto& [path, content] : each.files) {
      fs::create_directories((root / path).parent_path());
      std::ofstream(root / path) << content;
    }
    const GroupLimits limits = group_limits(root);
    EXPECT_EQ(limits.memory, each.memory);
    EXPECT_EQ(limits.cores, each.cores);
    fs::remove_all(root);
  }
}

}  // namespace
}  // namespace trainer
