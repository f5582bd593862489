#pragma once
// The arithmetic of a mesh: named axes, outermost first; ranks are numbered row-major. Pure: no communication.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer::mesh {

/// A set of mesh axes, bit a = axis a.
using AxisSet = uint32_t;
/// Control messages are counted under this key instead of a set of axes.
inline constexpr AxisSet kControlAxes = ~AxisSet{0};

struct MeshAxis {
  std::string name;  // "data", "tensor", "x" …
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// A value that is cheap to copy: copies share one description.
class MeshShape {
 public:
  static constexpr int kMaxAxes = 8;

  /// `aliases` name sets of axes. An axis that is split in two for some layout is declared as its two factors ("kv",
  /// "rep"), and its name ("tensor") is an alias of both.
  explicit MeshShape(std::vector<MeshAxis> axes = {}, std::vector<std::pair<std::string, AxisSet>> aliases = {});

  int axes() const { return static_cast<int>(names_->axes.size()); }
  int size(int axis) const { return names_->axes[static_cast<size_t>(axis)].size; }
  const std::string& name(int axis) const { return names_->axes[static_cast<size_t>(axis)].name; }
  AxisSet all() const { return (AxisSet{1} << axes()) - 1; }

  /// Returns the axes with this name or alias; an internal error if there are none.
  AxisSet set(std::string_view name) const;
  bool has(std::string_view name) const { return names_->find(name) != 0; }
  /// Returns the name of the set if it is an alias or a single axis, else the axes' names joined: "tensor", "kv+rep",
  /// "control".
  std::string name_of(AxisSet set) const;
  /// Returns the number of ranks in a group along `set`.
  int group_size(AxisSet set) const;
  int world_size() const { return group_size(all()); }

  int coordinate(int rank, int axis) const;
  /// Returns the index of `rank` in its group along `set`: row-major over the coordinates of these axes.
  int index(int rank, AxisSet set) const;
  /// Returns the world ranks of that group, in group order.
  std::vector<int> members(int rank, AxisSet set) const;

  /// True if both have the same axes in the same order.
  bool operator==(const MeshShape& other) const { return names_ == other.names_ || names_->axes == other.names_->axes; }

 private:
  struct Names {
    std::vector<MeshAxis> axes;
    std::vector<std::pair<std::string, AxisSet>> aliases;
    AxisSet find(std::string_view name) const;  // 0 if there is none
  };
  std::shared_ptr<const Names> names_;
};

}  // namespace trainer::mesh
