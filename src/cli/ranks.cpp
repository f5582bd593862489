#include "cli/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>

#include "base/limits.h"
#include "base/log.h"
#include "base/philox.h"
#include "config/keys.h"
#include "config/load.h"
#include "config/resolve.h"
#include "config/text.h"
#include "config/validate.h"
#include "huggingface/import.h"
#include "report/printable.h"

namespace trainer::cli {
namespace {

constexpr const char* kOneCommand = "give all ranks the same command line and the same configuration";
constexpr double kExitBarrierSeconds = 10;  // maximum time for which a rank waits for the other ranks before it exits

int launched() { return comm::launched_ranks().value_or(1); }

comm::WorldOptions world_options(const config::Config& config) {
  comm::WorldOptions options{.timeout_s = config.parallel.timeout, .lanes = static_cast<int>(config.parallel.lanes)};
  double longest = 0;
  for (const std::string& fault : config.debug.inject)
    longest = std::max(longest, config::injected_delay(fault).value_or(0));
  if (longest > 0)
    options.delay = [longest, key = philox_key(static_cast<uint64_t>(config.run.seed), "delay"),
                     draws = std::make_shared<std::atomic<uint64_t>>(0)](int rank) {
      const uint64_t draw = philox_at(key, (static_cast<uint64_t>(rank) << 40) + draws->fetch_add(1));
      return longest * static_cast<double>(draw % 1024) / 1024;
    };
  return options;
}

/// Returns the options for loading a configuration that this number of ranks uses.
config::LoadOptions load_options(const ConfigOptions& options, int64_t ranks) {
  config::LoadOptions load{.resume = options.resume};
  if (!options.any_ranks) load.world = ranks;
  return reading_models(std::move(load));
}

/// Returns the effective value of every key.
comm::Facts facts_of(const config::Config& config) {
  comm::Facts facts;
  for (const config::Key& key : config::keys()) facts.emplace_back(key.path(), config::to_toml(key.get(config)));
  return facts;
}

/// Rank 0 reads and checks the file and broadcasts its text. Every rank returns the same configuration or throws the
/// same error; ranks that were given different files or different --set values are rejected.
config::Config shared_configuration(comm::World& world, const ConfigOptions& options) {
  comm::Facts requested = options.requested;
  for (auto& [name, value] : requested) {  // the effective values are compared below instead
    if (name == "--config" && !options.file.empty()) value = "given";
    if (name == "--set" || name == "--resume") value.clear();
  }
  comm::require_same(world, requested, Code::usage, kOneCommand);
  std::string text, path = options.file;
  config::Config config;
  world.control().run_on_all_ranks([&] {
    if (options.file.empty()) config = load_configuration(options);
    if (options.file.empty() || !world.first()) return;
    text = config::read_text(options.file);
    config = config::load_text(text, config::name_of(options.file), options.sets, load_options(options, world.size()));
  });
  if (!options.file.empty()) {
    world.control().broadcast(text);
    world.control().broadcast(path);
    world.control().run_on_all_ranks([&] {
      if (world.first()) return;
      const std::string own = path == options.file ? text : config::read_text(options.file);
      config::LoadOptions load = load_options(options, world.size());
      load.files = false;
      config = config::load_text(own, config::name_of(options.file), options.sets, load);
    });
  }
  comm::require_same(world, facts_of(config), Code::config, kOneCommand);
  return config;
}

/// Runs the verb in this process, as one rank of mpirun.
int as_mpi_rank(const std::function<int(comm::World&)>& verb) {
  const std::unique_ptr<comm::World> world = comm::mpi_world({});
  log::set_rank(world->rank());
  int status = 0;
  try {
    status = verb(*world);
  } catch (...) {
    status = report(std::current_exception(), world->rank());
    try {
      throw;
    } catch (const Error& error) {
      if (error.scope() == Scope::here) world->fail(error.code(), error.what());
    } catch (const std::exception& error) {
      world->fail(code_of(error), error.what());
    }
  }
  world->wait_for_all_ranks(kExitBarrierSeconds);  // mpirun kills the other ranks as soon as one ends with an error
  return status;
}

}  // namespace

config::LoadOptions reading_models(config::LoadOptions options) {
  options.settings_of = [](const std::string& folder) { return huggingface::settings_of(folder); };
  return options;
}

config::Config load_configuration(const ConfigOptions& options) {
  if (options.file.empty()) return config::load_text("", "", options.sets, {.files = false});
  return config::load(options.file, options.sets, load_options(options, 1));
}

int run_on_ranks(const ConfigOptions& options, const std::function<int(comm::World&, const config::Config&)>& verb) {
  comm::require_launcher();
  if (launched() > 1)
    return as_mpi_rank([&](comm::World& world) {
      const config::Config config = shared_configuration(world, options);
      world.configure(world_options(config));
      return verb(world, config);
    });
  const config::Config config = load_configuration(options);
  const auto ranks = static_cast<int>(config::world_size(config, 1));
  if (ranks == 1) return verb(*comm::solo_world(), config);
  std::vector<int> status(static_cast<size_t>(ranks));
  comm::run_on_threads(ranks, world_options(config), [&](comm::World& world) {
    log::set_rank(world.rank());
    status[static_cast<size_t>(world.rank())] = verb(world, config);
  });
  return status.front();
}

int run_on_ranks(const std::function<int(comm::World&)>& verb, const comm::Facts& requested) {
  comm::require_launcher();
  if (launched() <= 1) return verb(*comm::solo_world());
  return as_mpi_rank([&](comm::World& world) {
    comm::require_same(world, requested, Code::usage, kOneCommand);
    return verb(world);
  });
}

int run_on_first_rank(const std::function<int()>& verb, const comm::Facts& requested) {
  if (launched() <= 1) return verb();
  const auto on_first = [&](comm::World& world) {
    constexpr double kNoTimeout = 1e9;  // seconds
    world.configure({.timeout_s = kNoTimeout});
    if (world.first()) log::info("{} ranks were started, but this command runs on rank 0 only", world.size());
    double status = 0;
    world.control().run_on_all_ranks([&] {
      if (world.first()) status = verb();
    });
    world.control().sum({&status, 1});
    return static_cast<int>(status);
  };
  return run_on_ranks(on_first, requested);
}

int report(const std::exception_ptr& exception, int rank) {
  Code code = Code::internal;
  std::string text;
  bool reported = false;  // by another rank
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    code = error.code();
    text = error.what();
    reported = error.scope() == Scope::another_rank || (error.scope() == Scope::all_ranks && rank > 0);
  } catch (const std::bad_alloc&) {
    code = Code::plan;
    text = "out of memory; `trainer train --dry-run` prints the memory that a run requires";
  } catch (const std::filesystem::filesystem_error& error) {
    code = Code::io;
    text = error.what();
  } catch (const std::exception& error) {
    code = code_of(error);
    const std::error_code refused = std::make_error_code(std::errc::resource_unavailable_try_again);
    text = code == Code::plan ? no_more_threads("this run", refused).what() : error.what();
  }
  if (code == Code::internal) text = "internal error (a bug, please report it): " + text;
  const std::string here = format("rank {}", rank);  // messages of time-outs already begin with it
  const bool named = text.starts_with(here + ":") || text.starts_with(here + " ");
  const std::string who = rank > 0 && !named ? "trainer: " + here : "trainer";
  if (!reported || code == Code::internal)
    std::fprintf(stderr, "%s: %s\n", who.c_str(), report::printable(text).c_str());
  return exit_status(code);
}

}  // namespace trainer::cli
