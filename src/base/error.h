#pragma once
// The trainer's errors. Wrong input throws Error with a Code that cli/ turns into the exit status; TRAINER_CHECK
// reports a broken invariant (a bug). Outer layers add context: `catch (Error& e) { e.add_context("block 17"); throw;
// }`.
#include <algorithm>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"

namespace trainer {

enum class Code { internal, config, usage, plan, data, checkpoint, nonfinite, comm, io, device, difference };

/// Returns the program's exit status for an error of this kind (contract: 0 done, 75 saved after a signal).
int exit_status(Code code);

/// The ranks that throw an error. `here`: only this one; the other ranks must be notified. `all_ranks`: every rank
/// throws the same error, so one message is enough. `another_rank`: a copy of an error that a different rank reports.
enum class Scope { here, all_ranks, another_rank };

class Error : public std::runtime_error {
 public:
  Error(Code code, std::string message) : std::runtime_error(message), code_(code), message_(std::move(message)) {
    std::ranges::replace(message_, '\0', '?');  // what() would end there
  }

  Code code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }
  Scope scope() const { return scope_; }
  Error& on(Scope scope) {
    scope_ = scope;
    return *this;
  }
  /// Prepends "context: " to the message.
  void add_context(const std::string& context) { message_ = context + ": " + message_; }

 private:
  Code code_;
  std::string message_;
  Scope scope_ = Scope::here;
};

[[noreturn]] void check_failed(const char* condition, const std::string& message, std::source_location where);

}  // namespace trainer

/// Checks an invariant, in release builds too. The message is a format string with its arguments: TRAINER_CHECK(a == b,
/// "{} is not {}", a, b).
#define TRAINER_CHECK(condition, ...)                                                                   \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::trainer::check_failed(#condition, ::fmt::format(__VA_ARGS__), std::source_location::current()); \
  } while (false)

#ifdef NDEBUG
#define TRAINER_DCHECK(condition, ...) static_cast<void>(0)
#else
#define TRAINER_DCHECK(condition, ...) TRAINER_CHECK(condition, __VA_ARGS__)
#endif
