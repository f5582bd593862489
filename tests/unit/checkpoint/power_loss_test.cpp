// Power loss during a save. The calls are recorded in a model of a disk that keeps only synced data: of later writes a
// random part survives, torn and out of order. The surviving data are written to files, which must load.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Names = std::map<std::string, NodePtr>;
/// Names that change atomically (a rename removes one and sets another); null: the name is removed.
using NameChange = std::vector<std::pair<std::string, NodePtr>>;

struct Node {
  bool folder = false;
  std::string synced_bytes;
  std::vector<std::string> writes;  // appended since the last sync
  Names names, synced_names;        // now, and at the last sync
  std::vector<NameChange> changes;  // since the last sync
};

void apply(Names& names, const NameChange& change) {
  for (const auto& [name, node] : change) {
    if (node == nullptr) {
      names.erase(name);
    } else {
      names[name] = node;
    }
  }
}

/// Writes one of the possible contents of a disk after a power loss.
void write_survivors(const Node& node, const fs::path& path, Random& random) {
  if (!node.folder) {
    std::string bytes = node.synced_bytes;
    for (const std::string& write : node.writes) {
      switch (pick(random, 0, 3)) {
        case 0:
          break;
        case 1:
          bytes += write.substr(0, write.size() / 2);
          break;
        case 2:
          bytes += std::string(write.size(), '\0');
          break;
        default:
          bytes += write;
      }
    }
    write(path, bytes);
    return;
  }
  fs::create_directories(path);
  Names names = node.synced_names;
  const bool in_order = pick(random, 0, 1) == 0;
  for (const NameChange& change : node.changes) {
    if (pick(random, 0, 2) != 0) {
      apply(names, change);
    } else if (in_order) {
      break;
    }
  }
  for (const auto& [name, child] : names) write_survivors(*child, path / name, random);
}

/// Passes calls on and records them in the model; throws PowerLoss before the call that lose_power_at() sets.
struct PowerLoss {};
class ModelDisk : public SystemCalls {
 public:
  explicit ModelDisk(fs::path root) : root_(std::move(root)), disk_(std::make_shared<Node>()) { disk_->folder = true; }
  void lose_power_at(int64_t call) { left_ = call; }
  int64_t calls() const { return calls_; }
  const Node& disk() const { return *disk_; }

  int open(const char* path, int flags, mode_t mode) override {
    count();
    const int fd = SystemCalls::open(path, flags, mode);
    if (flags & O_CREAT) change(fs::path(path).parent_path(), {{base(path), std::make_shared<Node>()}});
    open_[fd] = find(path);
    return fd;
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    count();
    open_[fd]->writes.emplace_back(static_cast<const char*>(data), bytes);
    return SystemCalls::write(fd, data, bytes);
  }
  int fsync(int fd) override {
    count();
    Node& node = *open_[fd];
    for (const std::string& write : node.writes) node.synced_bytes += write;
    node.writes.clear();
    node.synced_names = node.names;
    node.changes.clear();
    return 0;
  }
  int mkdir(const char* path, mode_t mode) override {
    count();
    const NodePtr node = std::make_shared<Node>();
    node->folder = true;
    change(fs::path(path).parent_path(), {{base(path), node}});
    return SystemCalls::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    count();
    change(fs::path(from).parent_path(), {{base(to), find(from)}, {base(from), nullptr}});
    return SystemCalls::rename(from, to);
  }
  int exchange(const char* one, const char* other) override {
    count();
    if (without_exchange) return errno = ENOSYS, -1;
    change(fs::path(one).parent_path(), {{base(one), find(other)}, {base(other), find(one)}});
    return SystemCalls::exchange(one, other);
  }
  int unlink(const char* path) override {
    count();
    change(fs::path(path).parent_path(), {{base(path), nullptr}});
    return SystemCalls::unlink(path);
  }
  int rmdir(const char* path) override {
    count();
    change(fs::path(path).parent_path(), {{base(path), nullptr}});
    return SystemCalls::rmdir(path);
  }
  bool without_exchange = false;

 private:
  static std::string base(const char* path) { return fs::path(path).filename().string(); }
  void count() {
    if (left_ && (*left_)-- == 0) throw PowerLoss();
    ++calls_;
  }
  NodePtr find(const fs::path& path) const {
    NodePtr node = disk_;
    for (const fs::path& part : path.lexically_relative(root_)) {
      if (part == ".") continue;
      const auto found = node->names.find(part.string());
      if (found == node->names.end()) return nullptr;
      node = found->second;
    }
    return node;
  }
  void change(const fs::path& folder, const NameChange& names) {
    const NodePtr node = find(folder);
    apply(node->names, names);
    node->changes.push_back(names);
  }

  fs::path root_;
  NodePtr disk_;
  std::map<int, NodePtr> open_;
  std::optional<int64_t> left_;
  int64_t calls_ = 0;
};

TEST(PowerLoss, NeverTakesTheLastCompleteCheckpoint) {
  int older = 0, newer = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Random random(seed);
    TempFolder before, after;
    const int64_t step = pick(random, 0, 1) == 0 ? 200 : 300;  // 200: saved again
    ModelDisk disk(before);
    disk.without_exchange = pick(random, 0, 1) == 0;
    save_step(before / "c", 100, {}, disk);
    save_step(before / "c", 200, {}, disk);
    // A save makes about 60 calls. If all are made, power is lost after the save, before its removals are synced.
    disk.lose_power_at(pick(random, 0, 75));
    try {
      save_step(before / "c", step, {}, disk, {.keep = 1});
    } catch (const PowerLoss&) {
    }
    write_survivors(disk.disk(), after, random);
    Warnings warnings;
    const int64_t found = load_newest(after / "c", small_model());
    EXPECT_TRUE(found == 200 || found == step) << found;
    ++(found == 200 ? older : newer);
    save_step(after / "c", step);
    EXPECT_EQ(load_newest(after / "c", small_model()), step);
    EXPECT_TRUE(hidden_names(after / "c").empty());
    if (HasFailure()) return;
  }
  EXPECT_GT(older, 100);
  EXPECT_GT(newer, 50);
}

TEST(PowerLoss, TakesNothingOfASaveThatReturned) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Random random(seed);
    TempFolder before, after;
    ModelDisk disk(before);
    disk.without_exchange = seed % 2 == 0;
    for (const int64_t step : {100, 200, 200}) save_step(before / "c", step, {}, disk, {.keep = 2});
    write_survivors(disk.disk(), after, random);
    Warnings warnings;
    EXPECT_EQ(load_newest(after / "c", small_model()), 200);
    EXPECT_TRUE(warnings.lines.empty());
  }
}

}  // namespace
}  // namespace trainer::checkpoint
