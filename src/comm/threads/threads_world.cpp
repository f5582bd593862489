#include <exception>
#include <mutex>
#include <thread>

#include "base/limits.h"
#include "comm/engine_world.h"
#include "comm/threads/threads_transport.h"

namespace trainer::comm {

void run_on_threads(int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
  TRAINER_CHECK(ranks >= 1, "{} ranks", ranks);
  const std::shared_ptr<Exchange> exchange = make_exchange(ranks);

  // All worlds live until all bodies have ended, since each world's progress thread answers other ranks' probes.
  std::vector<std::unique_ptr<EngineWorld>> worlds;
  for (int rank = 0; rank < ranks; ++rank) {
    auto engine = std::make_unique<Engine>(threads_transport(exchange, rank), options);
    auto control = EngineWorld::make_control(*engine);
    worlds.push_back(std::make_unique<EngineWorld>(std::move(engine), std::move(control), "threads", rank, ranks, 0));
  }

  std::mutex mutex;
  std::exception_ptr first;
  bool echo = false;  // `first` only repeats a different rank's error
  const auto run = [&](World& world) {
    const auto fail = [&](Code code, const std::string& why, Scope scope) {
      {
        const std::lock_guard lock(mutex);
        if (!first || (echo && scope != Scope::another_rank)) {
          first = std::current_exception();
          echo = scope == Scope::another_rank;
        }
      }
      world.fail(code, why);
    };
    try {
      body(world);
      world.wait_for_all_ranks(0);  // this rank has ended, so no rank should wait for it
    } catch (const Error& error) {
      fail(error.code(), error.what(), error.scope());
    } catch (const std::exception& error) {
      fail(code_of(error), error.what(), Scope::here);
    } catch (...) {
      fail(Code::internal, "an exception of unknown type", Scope::here);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (const auto& world : worlds)
      threads.push_back(
          start_thread<std::thread>(format("rank {} of {} (parallel.transport = \"threads\")", threads.size(), ranks),
                                    [&run, &world] { run(*world); }));
  } catch (const Error& error) {  // ranks that have started must not wait for ranks that have not
    {
      const std::lock_guard lock(mutex);
      first = std::current_exception();
      echo = false;
    }
    for (size_t rank = threads.size(); rank < worlds.size(); ++rank) worlds[rank]->fail(error.code(), error.what());
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace trainer::comm
