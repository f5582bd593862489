#include "base/lfs_pointer.h"

namespace trainer {

void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view start, Code code) {
  if (start.starts_with("version https://git-lfs.github.com/spec/"))
    throw Error(code, format("{}: a pointer of Git LFS, not the file itself; download the file (`git lfs pull` in its "
                             "repository, or `hf download`)",
                             path.string()));
}

}  // namespace trainer
