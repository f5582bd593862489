// Damaged checkpoint files: every change is detected before a weight is used, or affects no data that is used.
#include <gtest/gtest.h>

#include "checkpoint/inspect.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

/// Makes one random change and returns its description.
std::string damage(const fs::path& step, const fs::path& foreign, Random& random) {
  const std::vector<std::string> names = names_in(step);
  const std::string name = names[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(names.size()) - 1))];
  const fs::path path = step / name;
  std::string bytes = content_of(path);
  const int64_t size = static_cast<int64_t>(bytes.size());
  switch (pick(random, 0, 9)) {
    case 0:
      fs::remove(path);
      return "removed " + name;
    case 1: {
      const int64_t left = pick(random, 0, size - 1);
      fs::resize_file(path, static_cast<uintmax_t>(left));
      return format("{} cut to {} bytes", name, left);
    }
    case 2:
      write(path, bytes + std::string(static_cast<size_t>(pick(random, 1, 70)), '\0'));
      return "zeros appended to " + name;
    case 3:
      if (content_of(foreign / name) != bytes) {
        fs::copy_file(foreign / name, path, fs::copy_options::overwrite_existing);
        return name + " of another checkpoint";
      }
      [[fallthrough]];
    case 4:
      write(step / "rank-00001.shard", "foreign");
      return "a foreign file";
    case 5: {
      const int64_t begin = pick(random, 0, size - 1), length = pick(random, 1, size - begin);
      std::string other(static_cast<size_t>(length), '\0');
      for (char& c : other) c = static_cast<char>(random());
      other[0] = static_cast<char>(~bytes[static_cast<size_t>(begin)]);
      write(path, bytes.replace(static_cast<size_t>(begin), other.size(), other));
      return format("{}: {} bytes at {} overwritten", name, length, begin);
    }
    default: {
      const int64_t at = pick(random, 0, size - 1), bit = pick(random, 0, 7);
      bytes[static_cast<size_t>(at)] = static_cast<char>(bytes[static_cast<size_t>(at)] ^ (1 << bit));
      write(path, bytes);
      return format("{}: bit {} of byte {} flipped", name, bit, at);
    }
  }
}

TEST(Damage, IsAlwaysFound) {
  TempFolder folder;
  const fs::path original = save_step(folder / "a", 100, 100), foreign = save_step(folder / "b", 100, 3);
  const fs::path victim = folder / "victim";
  int refused = 0, harmless = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    Random random(seed);
    fs::remove_all(victim);
    fs::copy(original, victim);
    SCOPED_TRACE(format("seed {}: {}", seed, damage(victim, foreign, random)));
    Tensors loaded(small_model());
    try {
      EXPECT_FALSE(verify(victim).problems.empty());
      const Reader reader(victim);
      reader.load(loaded.slices, {});
      EXPECT_EQ(reader.header().config_toml, content_of(original / "config.toml"));
      EXPECT_EQ(reader.header().tokenizer, content_of(original / "tokenizer.model"));
      EXPECT_EQ(loaded.difference(100), "");
      ++harmless;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::checkpoint);
      expect_parts(error.what(), {victim.string()});
      ++refused;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(harmless, 50);  // foreign files, bytes between two tensors
}

TEST(Damage, OfAnyBitOfAnyFileIsFoundByVerify) {
  TempFolder folder;
  Tensors tensors({{"w", {3}}, {"b", {1}}});
  CheckpointStore store(folder, {}, fast_calls());
  const fs::path step = store.save(snapshot_of(tensors, 1));
  EXPECT_TRUE(verify(step).problems.empty());
  for (const std::string& name : names_in(step)) {
    const std::string bytes = content_of(step / name);
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
      write(step / name, flipped);
      ASSERT_FALSE(verify(step).problems.empty()) << name << " byte " << at;
    }
    write(step / name, bytes);
  }
}

TEST(Damage, IsNamedByFileTensorAndOffset) {
  TempFolder folder;
  const fs::path shard = save_step(folder, 100, 100) / "rank-00000.shard";
  std::string bytes = content_of(shard);
  bytes[320 + 5] ^= 1;  // wte takes bytes 0 to 312, wte#m 320 to 632
  write(shard, bytes);
  expect_error(Code::checkpoint, {shard.string() + ": tensor wte#m", "checksum", "bytes 320 to 632"},
               [&] { load_newest(folder, small_model()); });
  const VerifyReport report = verify(folder);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_NE(report.problems[0].find("wte#m"), std::string::npos);
}

}  // namespace
}  // namespace trainer::checkpoint
