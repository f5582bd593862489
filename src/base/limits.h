#pragma once
// Errors for threads and memory that the system refuses: the limits of a user or container are not bugs in the program.
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace trainer {

/// Returns the code of an exception that is not an Error: Code::plan if the system refused memory or a thread, else
/// Code::internal.
inline Code code_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return Code::plan;
  const auto* refused = dynamic_cast<const std::system_error*>(&exception);
  const bool limit = refused != nullptr && (refused->code() == std::errc::resource_unavailable_try_again ||
                                            refused->code() == std::errc::not_enough_memory);
  return limit ? Code::plan : Code::internal;
}

/// Returns the error for a thread that the system refused to start.
inline Error no_more_threads(const std::string& what, const std::error_code& reason) {
  return {Code::plan, format("{}: the system cannot create another thread: {}; use fewer threads, or raise the limits "
                             "on processes (ulimit -u; pids.max in a container) and memory (ulimit -v)",
                             what, reason.message())};
}

/// Starts a thread that runs `work`. Throws Code::plan if the system refuses it; `what` describes the thread in the
/// message: "thread 7 of run.threads = 8".
template <typename Thread = std::jthread, typename F>
Thread start_thread(const std::string& what, F&& work) {
  try {
    return Thread(std::forward<F>(work));
  } catch (const std::system_error& refused) {
    throw no_more_threads(what, refused.code());
  }
}

}  // namespace trainer
