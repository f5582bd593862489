// metrics.jsonl as a file: continued, cut back, on a full disk.
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "base/error.h"
#include "unit/report/metrics_fixture.h"

namespace trainer::report {
namespace {

class MetricsFile : public Metrics {};

TEST_F(MetricsFile, AppendsAndEndsATornLineFirst) {
  put("{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"st");
  { MetricsLog(file_).write(EvalReport{.step = 1}); }
  const History history = read_history(file_);
  EXPECT_EQ(history.steps.size(), 1);
  EXPECT_EQ(history.evals.size(), 1);
  EXPECT_EQ(history.unreadable_lines, 1);
}

TEST_F(MetricsFile, TruncatesToTheResumedStepAndKeepsTheRestByteForByte) {
  const std::string kept =
      "{\"event\":\"start\",\"step\":0}\n{\"event\": \"step\",  \"step\":4, "
      "\"loss\":1.50}\n{\"event\":\"eval\",\"step\":5}\n"
      "{\"event\":\"warning\",\"message\":\"no step\"}\n";
  put(kept + "{\"event\":\"step\",\"step\":6}\n{\"event\":\"end\",\"step\":7}\n" +
      "{\"event\":\"checkpoint\",\"step\":5}\n{\"event\":\"step\",\"step\":5");
  truncate_after_step(file_, 5);
  EXPECT_EQ(text(), kept + "{\"event\":\"checkpoint\",\"step\":5}\n");
  truncate_after_step(file_, 5);
  EXPECT_EQ(text(), kept + "{\"event\":\"checkpoint\",\"step\":5}\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "no temporary file stays";
}

TEST_F(MetricsFile, TruncatingAMissingFileIsFine) {
  truncate_after_step(file_, 5);
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_TRUE(read_history(file_).steps.empty());
}

TEST_F(MetricsFile, AFullDiskIsWarnedAboutOnceAndDoesNotStop) {
  MetricsLog log("/dev/full");
  for (int i = 0; i < 3; ++i) log.write(full_step());
  EXPECT_EQ(log.lost(), 3);
  ASSERT_EQ(logged_.size(), 1);
  EXPECT_NE(logged_[0].find("/dev/full"), std::string::npos);
  EXPECT_NE(logged_[0].find("No space left"), std::string::npos);
}

TEST_F(MetricsFile, GoesOnAfterAShortWrite) {
  const pid_t child = fork();
  if (child == 0) {  // a file-size limit stands for a disk that is full for a while
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {100, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    MetricsLog log(file_);
    log.write(full_step());
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    log.write(EvalReport{.step = 7});
    _exit(log.lost() == 1 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const History history = read_history(file_);
  EXPECT_EQ(history.evals.size(), 1);
  EXPECT_EQ(history.unreadable_lines, 1);
}

TEST_F(MetricsFile, AnUnwritableFileIsAnErrorThatNamesIt) {
  try {
    MetricsLog log(folder_ / "missing" / "metrics.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    EXPECT_NE(std::string(error.what()).find("missing/metrics.jsonl"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainer::report
