#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "comm/mpi/mpi_table.h"
#include "comm/world.h"

// Returns the MPI table (see mpi_table.h). The build decides whether it is linked in, loaded at run time, or missing.
namespace trainer::comm {
#if defined(TRAINER_HAS_MPI)

const MpiTable& mpi_table() { return *trainer_mpi(); }

#elif defined(TRAINER_MPI_MODULES)
namespace {

/// An application binary interface (ABI) of MPI: the module compiled for it, and the libraries that implement it.
struct Family {
  std::string_view name, module;
  std::array<const char*, 2> libraries;
};
constexpr Family kOpenMpi = {"openmpi", "trainer_mpi_openmpi.so", {"libmpi.so.40", nullptr}};
// Intel MPI, MVAPICH and Cray MPICH share MPICH's ABI and file name; Debian names its MPICH differently.
constexpr Family kMpich = {"mpich", "trainer_mpi_mpich.so", {"libmpi.so.12", "libmpich.so.12"}};

std::string error_of_loader() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

const MpiTable& table_of(const Family& family) {
  const std::string file(family.module);
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const function = module == nullptr ? nullptr : dlsym(module, "trainer_mpi");
  if (function == nullptr)
    throw Error(Code::usage, format("cannot load {}, which belongs next to the program or in lib/trainer: {}", file,
                                    error_of_loader()));
  const MpiTable& table = *reinterpret_cast<MpiTableFunction>(function)();
  if (table.abi != kMpiAbi)
    throw Error(Code::usage,
                format("{} belongs to a different version of the trainer (interface {}, expected {}); install "
                       "both from the same archive",
                       file, table.abi, kMpiAbi));
  return table;
}

const MpiTable& load() {
  const char* const chosen = std::getenv("TRAINER_MPI");
  const std::string choice = chosen == nullptr ? "" : chosen;
  // Older versions of Open MPI look for their own symbols in the global scope.
  const auto open = [](const char* library) { return dlopen(library, RTLD_NOW | RTLD_GLOBAL); };
  if (choice.find('/') != std::string::npos) {
    void* const library = open(choice.c_str());
    if (library == nullptr)
      throw Error(Code::usage, format("TRAINER_MPI={}: cannot load this MPI library: {}", choice, error_of_loader()));
    return table_of(dlsym(library, "ompi_mpi_comm_world") == nullptr ? kMpich : kOpenMpi);
  }
  std::vector<const Family*> families;
  if (choice == kOpenMpi.name || (choice.empty() && std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr))
    families = {&kOpenMpi};  // ranks started by its mpirun can only find each other through its library
  else if (choice == kMpich.name)
    families = {&kMpich};
  else if (!choice.empty())
    throw Error(Code::usage, format("TRAINER_MPI={}: expected openmpi, mpich, or the path of an MPI library", choice));
  else if (std::getenv("PMI_SIZE") != nullptr)
    families = {&kMpich, &kOpenMpi};
  else
    families = {&kOpenMpi, &kMpich};

  std::string attempts;
  for (const Family* family : families)
    for (const char* library : family->libraries) {
      if (library == nullptr) continue;
      if (open(library) != nullptr) return table_of(*family);
      attempts += format("\n  {}: {}", family->name, error_of_loader());
    }
  throw Error(Code::usage,
              format("cannot load an MPI library:{}\nInstall the MPI library of the mpirun that you use (Debian: "
                     "libopenmpi3 or libmpich12), or set TRAINER_MPI to the path of its libmpi.so",
                     attempts));
}

}  // namespace

const MpiTable& mpi_table() {
  static const MpiTable& table = load();
  return table;
}

#else

const MpiTable& mpi_table() {
  throw Error(Code::usage,
              "this trainer was built without MPI; install libopenmpi-dev and rebuild, or start it without mpirun");
}

#endif

std::vector<std::string> mpi_modules() {
#if defined(TRAINER_MPI_MODULES)
  return {TRAINER_MPI_MODULES};
#else
  return {};
#endif
}

std::optional<std::string> mpi_version() {
#if defined(TRAINER_MPI_MODULES)
  // Two MPI libraries in one process would clash, so none is loaded before a launcher determines which one is needed.
  if (!launched_ranks()) return format("MPI at run time ({})", fmt::join(mpi_modules(), ", "));
#elif !defined(TRAINER_HAS_MPI)
  return std::nullopt;
#endif
  char text[512];
  mpi_table().version(text, sizeof text);
  const std::string_view all = text;
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

}  // namespace trainer::comm
