#pragma once
// Checks for errors and warnings of the code under test.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace trainer::tests {

/// Collects log lines instead of printing them.
class Warnings {
 public:
  Warnings() : previous_(log::set_sink([this](log::Level, const std::string& line) { lines.push_back(line); })) {}
  ~Warnings() { log::set_sink(previous_); }
  std::vector<std::string> lines;

 private:
  log::Sink previous_;
};

/// Returns the error that `action` throws. The test fails if it throws none.
template <typename F>
Error error_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(Code::internal, "");
}

/// Expects all `parts` in the message: the location of the mistake, what was found, the remedy. The sentences around
/// them may change.
inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

/// Expects `action` to throw an Error of this kind, with these parts in its message.
template <typename F>
void expect_error(Code code, const std::vector<std::string>& parts, F&& action) {
  const Error error = error_of(action);
  EXPECT_EQ(error.code(), code) << error.what();
  expect_parts(error.what(), parts);
}

}  // namespace trainer::tests
