#include "report/event_file.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

TEST(EventFile, ChecksumsAreThoseOfTheStandard) {  // RFC 3720, B.4, and the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

// The bytes that TensorBoard's own writer (tensorboard 2.21, protobuf) writes for the same events.
TEST(EventFile, RecordsAreThoseOfTensorBoard) {
  EXPECT_EQ(hex(event_record(version_event(1.5))),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex(event_record(restart_event(2.25, 41))),
            "0f000000000000006d532b0909000000000000024010293a020801312a9e04");
  EXPECT_EQ(hex(event_record(scalar_event(1e9 + 0.5, 300, {{"loss/train", 2.625}, {"optim/lr", 1e-3}}))),
            "3200000000000000241956ec090000400065cdcd4110ac022a240a110a0a6c6f73732f747261696e15000028400a0f0a086f"
            "7074696d2f6c72156f12833ac0e8614d");
  std::string expected =
      "fa0000000000000010e14e9d09000000000000084010072aec010ae9010a0773616d706c657342d3010807120042cc01";
  for (size_t i = 0; i < 200; ++i) expected += "78";
  EXPECT_EQ(hex(event_record(text_event(3, 7, "samples", std::string(200, 'x') + "\nend"))),
            expected + "0a656e644a080a060a0474657874b610b6f7");
}

using Files = RunFolder;

TEST_F(Files, LoseWholeRecordsOnAFullDisk) {
  const std::string record = event_record(version_event(1));
  EventFile file(folder_);
  file.write(version_event(1));
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const auto signalled = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{record.size() + 10, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  file.write(scalar_event(2, 1, {{"loss", 3}}));
  file.write(scalar_event(2, 2, {{"loss", 3}}));
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, signalled);
  EXPECT_EQ(read(file.path()), record);
  file.write("");  // there is room again
  EXPECT_EQ(read(file.path()), record + event_record(""));
  expect_texts(logged_, "training continues, and records", file.path().string());
  EXPECT_EQ(std::ranges::count(logged_, '\n'), 1) << logged_;
}

TEST_F(Files, CountTheRecordsThatAFullDiskTakes) {
  RecordFile file("/dev/full");
  for (int i = 0; i < 3; ++i) file.write("x\n");
  EXPECT_EQ(file.lost(), 3);
  expect_texts(logged_, "/dev/full", "No space left");
}

TEST_F(Files, AreBegunAgainAfterTheyWereDeleted) {
  std::filesystem::create_directory(folder_ / "run");
  RecordFile file(folder_ / "run" / "x");
  file.write("1\n");
  std::filesystem::remove_all(folder_ / "run");
  file.write("2\n");
  file.write("3\n");
  EXPECT_EQ(read(file.path()), "2\n3\n");
  EXPECT_EQ(file.lost(), 1);
  expect_texts(logged_, file.path().string(), "was deleted during the run; 1 lines are lost");
  EXPECT_EQ(std::ranges::count(logged_, '\n'), 1) << logged_;
}

TEST_F(Files, OfLaterProcessesSortBehindEarlierOnes) {
  put("events.out.tfevents.9000000000.elsewhere.1.0", "");
  put("events.out.tfevents.not_a_number", "");
  const EventFile first(folder_), second(folder_);
  EXPECT_EQ(first.path().filename().string().substr(0, 31), "events.out.tfevents.9000000001.");
  EXPECT_EQ(second.path().filename().string().substr(0, 31), "events.out.tfevents.9000000002.");
}

TEST_F(Files, ThatCannotBeMadeAreNamed) {
  expect_error(Code::io, "missing/events.out.tfevents.", [&] { EventFile file(folder_ / "missing"); });
}

}  // namespace
}  // namespace trainer::report
