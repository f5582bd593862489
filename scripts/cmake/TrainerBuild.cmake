# Compiler settings, third-party targets and the two helpers of the root CMakeLists.txt.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12
   OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is version ${CMAKE_CXX_COMPILER_VERSION}; GCC 12 or Clang 16 is the oldest "
                      "supported (choose a different one with -DCMAKE_CXX_COMPILER=…)")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)  # the sources have none; CMake 3.28 and newer would scan each file
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
set(CMAKE_BUILD_RPATH "\$ORIGIN")  # the folder of the MPI modules

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are cached too, as ccache's manual says.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
# A portable program needs only the C library of the system that it runs on; TrainerPackage.cmake packs the rest.
set(TRAINER_FMT fmt::fmt)
if(TRAINER_PORTABLE)
  set(TRAINER_FMT fmt::fmt-header-only)
  add_compile_options("-ffile-prefix-map=${PROJECT_BINARY_DIR}=build" "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.")  # equal bytes in every build folder
endif()

# Libraries without a usable package description get a target each, so that a module says what it uses.
function(trainer_header_library name header package)
  find_path(TRAINER_${name}_INCLUDE "${header}")
  if(NOT TRAINER_${name}_INCLUDE)
    message(FATAL_ERROR "${header} was not found (Debian: ${package}); scripts/install_packages.sh installs everything")
  endif()
  add_library(trainer_${name} INTERFACE)
  target_include_directories(trainer_${name} SYSTEM INTERFACE "${TRAINER_${name}_INCLUDE}")
endfunction()
trainer_header_library(tomlplusplus toml++/toml.h libtomlplusplus-dev)
trainer_header_library(json nlohmann/json.hpp nlohmann-json3-dev)
trainer_header_library(xxhash xxhash.h libxxhash-dev)
trainer_header_library(cli11 CLI/CLI.hpp libcli11-dev)
# No pkg-config: Debian 13's description of SentencePiece requires protobuf's development files, which nothing uses. Only
# its version is read there, which no header states.
trainer_header_library(sentencepiece sentencepiece_processor.h libsentencepiece-dev)
find_file(TRAINER_sentencepiece_PC pkgconfig/sentencepiece.pc PATH_SUFFIXES lib lib/${CMAKE_LIBRARY_ARCHITECTURE})
set(TRAINER_SENTENCEPIECE_VERSION unknown)
if(TRAINER_sentencepiece_PC)
  file(STRINGS "${TRAINER_sentencepiece_PC}" version REGEX "^Version: ")
  string(REPLACE "Version: " "" TRAINER_SENTENCEPIECE_VERSION "${version}")
endif()
trainer_header_library(pcre2 pcre2.h libpcre2-dev)
# Static archives where there are some: the program then runs without these packages. They add 0.8 MB.
find_library(TRAINER_pcre2_LIBRARY NAMES libpcre2-8.a pcre2-8 REQUIRED)
target_link_libraries(trainer_pcre2 INTERFACE "${TRAINER_pcre2_LIBRARY}")
trainer_header_library(zlib zlib.h zlib1g-dev)
find_library(TRAINER_zlib_LIBRARY NAMES libz.a z REQUIRED)
target_link_libraries(trainer_zlib INTERFACE "${TRAINER_zlib_LIBRARY}")
trainer_header_library(zstd zstd.h libzstd-dev)
find_library(TRAINER_zstd_LIBRARY NAMES libzstd.a zstd REQUIRED)
target_link_libraries(trainer_zstd INTERFACE "${TRAINER_zstd_LIBRARY}")
trainer_header_library(snappy snappy-c.h libsnappy-dev)
find_library(TRAINER_snappy_LIBRARY NAMES libsnappy.a snappy REQUIRED)
target_link_libraries(trainer_snappy INTERFACE "${TRAINER_snappy_LIBRARY}")
# Optional: Unicode normalisation, which tokenizers of Qwen models need.
find_path(TRAINER_utf8proc_INCLUDE utf8proc.h)
find_library(TRAINER_utf8proc_LIBRARY NAMES libutf8proc.a utf8proc)
if(TRAINER_utf8proc_INCLUDE AND TRAINER_utf8proc_LIBRARY)
  add_library(trainer_utf8proc INTERFACE)
  target_include_directories(trainer_utf8proc SYSTEM INTERFACE "${TRAINER_utf8proc_INCLUDE}")
  target_link_libraries(trainer_utf8proc INTERFACE "${TRAINER_utf8proc_LIBRARY}")
endif()
foreach(library sentencepiece sentencepiece_train)
  find_library(TRAINER_${library}_LIBRARY ${library} REQUIRED)
  target_link_libraries(trainer_sentencepiece INTERFACE "${TRAINER_${library}_LIBRARY}")
endforeach()

# The C interface only; src/comm/mpi/mpi_module.cpp is the only file that sees it. ON links the program with the MPI
# library that CMake finds. MODULE compiles that file once per mpi.h, and the program loads the one that fits its mpirun
# (src/comm/mpi/mpi_load.cpp). A module is not linked with its library, whose name differs between installations.
# TRAINER_MPI_LAUNCHERS: the commands that tests start ranks with.
set(TRAINER_MPI_LAUNCHERS "")
if(TRAINER_MPI STREQUAL "MODULE")
  find_path(TRAINER_openmpi_INCLUDE mpi.h NO_DEFAULT_PATH PATHS "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/include"
            "/usr/include/openmpi-${CMAKE_SYSTEM_PROCESSOR}")
  find_path(TRAINER_mpich_INCLUDE mpi.h NO_DEFAULT_PATH PATHS "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/mpich"
            "/usr/include/mpich-${CMAKE_SYSTEM_PROCESSOR}")
  find_program(TRAINER_openmpi_MPIRUN NAMES mpirun.openmpi mpirun HINTS "${TRAINER_openmpi_INCLUDE}/../bin")
  find_program(TRAINER_mpich_MPIRUN NAMES mpiexec.mpich mpiexec.hydra)
  set(TRAINER_MPI_MODULES "")
  foreach(mpi openmpi mpich)
    if(TRAINER_${mpi}_INCLUDE)
      list(APPEND TRAINER_MPI_MODULES ${mpi})
      if(TRAINER_${mpi}_MPIRUN)
        list(APPEND TRAINER_MPI_LAUNCHERS ${mpi})
      endif()
    endif()
  endforeach()
  if(NOT TRAINER_MPI_MODULES)
    message(FATAL_ERROR "TRAINER_MPI=MODULE, but no mpi.h was found (Debian: libopenmpi-dev, libmpich-dev); name its folder "
                        "with TRAINER_openmpi_INCLUDE or TRAINER_mpich_INCLUDE")
  endif()
elseif(NOT TRAINER_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(trainer_mpi INTERFACE)
    target_link_libraries(trainer_mpi INTERFACE MPI::MPI_CXX)
    set(TRAINER_MPI_LAUNCHERS openmpi)
    set(TRAINER_openmpi_MPIRUN "${MPIEXEC_EXECUTABLE}")
  elseif(TRAINER_MPI STREQUAL "ON")
    message(FATAL_ERROR "TRAINER_MPI=ON, but MPI was not found (Debian: libopenmpi-dev)")
  endif()
endif()

# The toolkit's compiler decides: CUDA's libraries are useless without it.
if(NOT TRAINER_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  find_program(TRAINER_NVCC nvcc HINTS "$ENV{CUDACXX}" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
  if(TRAINER_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${TRAINER_NVCC}")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # 90: also PTX, which newer devices translate
    endif()
    if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
    endif()
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)  # CMake 3.25 knows no C++20 for CUDA: the flag is among TRAINER_CUDA_FLAGS
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TRAINER_HAS_CUDA TRUE)
  elseif(TRAINER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRAINER_CUDA=ON, but nvcc was not found (PATH, CUDACXX, CUDA_PATH, /usr/local/cuda/bin)")
  else()
    message(STATUS "nvcc was not found: no CUDA")
  endif()
endif()

# Searched for next to the toolkit's libraries, and in the compiler's paths.
if(TRAINER_HAS_CUDA AND NOT TRAINER_NCCL STREQUAL "OFF")
  find_path(TRAINER_nccl_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TRAINER_nccl_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(TRAINER_nccl_INCLUDE AND TRAINER_nccl_LIBRARY)
    set(TRAINER_HAS_NCCL TRUE)
  endif()
endif()
if(TRAINER_NCCL STREQUAL "ON" AND NOT TRAINER_HAS_NCCL)
  message(FATAL_ERROR "TRAINER_NCCL=ON, but NCCL was not found, or CUDA is not built (nccl.h and libnccl: Debian's and "
                      "NVIDIA's package libnccl-dev)")
endif()

# Folders of libraries that the program loads when it first uses them (base/shared_library.h).
foreach(library IN ITEMS "${CUDA_cublasLt_LIBRARY}" "${TRAINER_nccl_LIBRARY}")
  get_filename_component(folder "${library}" DIRECTORY)
  if(EXISTS "${library}" AND NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    list(APPEND TRAINER_LOADED_FOLDERS "${folder}")
  endif()
endforeach()
list(REMOVE_DUPLICATES TRAINER_LOADED_FOLDERS)
list(APPEND CMAKE_BUILD_RPATH ${TRAINER_LOADED_FOLDERS})

# cuDNN's fused attention: headers only, the library is opened at its first use. Found by hand: neither has a package
# description everywhere. The front end is a separate header-only package (cudnn-frontend).
if(TRAINER_HAS_CUDA AND NOT TRAINER_CUDNN STREQUAL "OFF")
  find_path(TRAINER_cudnn_INCLUDE cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(TRAINER_cudnn_frontend_INCLUDE cudnn_frontend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(TRAINER_cudnn_INCLUDE AND TRAINER_cudnn_frontend_INCLUDE)
    file(STRINGS "${TRAINER_cudnn_INCLUDE}/cudnn_version.h" major REGEX "^#define CUDNN_MAJOR +(9|[1-9][0-9])")
    if(major)
      set(TRAINER_HAS_CUDNN TRUE)
    endif()
  endif()
  if(NOT TRAINER_HAS_CUDNN AND TRAINER_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "TRAINER_CUDNN=ON, but cudnn_version.h of cuDNN 9 or cudnn_frontend.h was not found "
                        "(TRAINER_cudnn_INCLUDE, TRAINER_cudnn_frontend_INCLUDE, CMAKE_PREFIX_PATH)")
  elseif(NOT TRAINER_HAS_CUDNN)
    message(STATUS "cuDNN 9 with cudnn-frontend was not found: attention uses the built-in kernels only")
  endif()
endif()

# Instruction sets of CPU kernels: all of them, or with `native` plain C++ and the best one of this machine.
set(TRAINER_ISA_SETS "plain;avx2;avx512" CACHE STRING "Instruction sets of CPU kernels: plain;avx2;avx512, or native")
if(TRAINER_ISA_SETS STREQUAL "native")
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  if(flags MATCHES " avx512f .* avx512vl")
    set(TRAINER_ISA_SETS plain avx512)
  elseif(flags MATCHES " avx2 ")
    set(TRAINER_ISA_SETS plain avx2)
  else()
    set(TRAINER_ISA_SETS plain)
  endif()
endif()
foreach(isa avx2 avx512)
  if(NOT isa IN_LIST TRAINER_ISA_SETS)
    string(TOUPPER "${isa}" name)
    add_compile_definitions(TRAINER_WITHOUT_${name}=1)
  endif()
endforeach()

# No -ffast-math anywhere: its start-up object changes MXCSR for the whole process. No contraction: AdamW's arithmetic
# is canonical, every fma is written out.
set(TRAINER_FLAGS -ffp-contract=off -fno-math-errno)
set(TRAINER_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wno-sign-conversion
    -Wno-missing-field-initializers)  # operators are structs with defaults, filled by name
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TRAINER_WARNINGS -Wno-restrict)  # GCC 12's false alarms on std::string + "…" at -O3
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND TRAINER_WARNINGS -Wno-unknown-pragmas)  # GCC ivdep
endif()
if(CMAKE_UNITY_BUILD)  # files in one unit shadow each other's names; builds without it check each file on its own
  list(APPEND TRAINER_WARNINGS -Wno-shadow -Wno-subobject-linkage)
endif()
if(TRAINER_WERROR)
  list(APPEND TRAINER_WARNINGS -Werror)
endif()
if(TRAINER_SANITIZE)
  add_compile_options(-fsanitize=${TRAINER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${TRAINER_SANITIZE})
endif()

# For packages. The program reads a header that is renewed at every build (trainer_version below).
include(FindVersion)
find_version("${PROJECT_SOURCE_DIR}" "${PROJECT_VERSION}" TRAINER_VERSION commit)
set(TRAINER_GENERATED "${PROJECT_BINARY_DIR}/generated")
add_custom_target(trainer_version
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" -DPROJECT=${PROJECT_VERSION}
          "-DHEADER=${TRAINER_GENERATED}/trainer_version.h" -P "${CMAKE_CURRENT_LIST_DIR}/FindVersion.cmake"
  BYPRODUCTS "${TRAINER_GENERATED}/trainer_version.h" COMMENT "Finding the version" VERBATIM)

# trainer_module(NAME [DEPS modules…] [LIBS targets…] [EXECUTABLE] [COLD]): all sources of src/NAME as trainer_NAME.
# COLD: no loop over elements or tokens is in it; TRAINER_COLD_FLAGS apply (preset quick: -O1).
# EXECUTABLE: everything but main.cpp goes into the library, main.cpp becomes the program `trainer`.
function(trainer_module name)
  cmake_parse_arguments(arg "EXECUTABLE;COLD" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "\\.isa\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/src/cli/main\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/src/${name}/(cuda|nccl)/")
  list(TRANSFORM arg_DEPS PREPEND trainer_)
  if(sources)
    add_library(trainer_${name} STATIC ${sources})
    target_compile_options(trainer_${name} PRIVATE ${TRAINER_FLAGS} ${TRAINER_WARNINGS})
    if(arg_COLD)
      target_compile_options(trainer_${name} PRIVATE ${TRAINER_COLD_FLAGS})
    endif()
    set(scope PUBLIC)
  else()
    add_library(trainer_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(trainer_${name} ${scope} "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(trainer_${name} ${scope} ${arg_DEPS} ${arg_LIBS} Threads::Threads)
  if(arg_EXECUTABLE AND EXISTS "${PROJECT_SOURCE_DIR}/src/${name}/main.cpp")
    add_executable(trainer "${PROJECT_SOURCE_DIR}/src/${name}/main.cpp")
    target_compile_options(trainer PRIVATE ${TRAINER_FLAGS} ${TRAINER_WARNINGS})
    target_link_libraries(trainer PRIVATE trainer_${name})
    if(EXISTS "${PROJECT_SOURCE_DIR}/src/${name}/version.cpp")
      set_source_files_properties("${PROJECT_SOURCE_DIR}/src/${name}/version.cpp" PROPERTIES
        INCLUDE_DIRECTORIES "${TRAINER_GENERATED}" OBJECT_DEPENDS "${TRAINER_GENERATED}/trainer_version.h"
        COMPILE_DEFINITIONS "TRAINER_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\";TRAINER_SENTENCEPIECE_VERSION=\"${TRAINER_SENTENCEPIECE_VERSION}\"")
      add_dependencies(trainer_${name} trainer_version)
    endif()
  endif()
endfunction()

# trainer_isa_variants(MODULE): every src/MODULE/**/*.isa.cpp is compiled once per instruction set, with
# TRAINER_ISA=plain|avx2|avx512 naming the namespace its kernels go into; run-time dispatch picks one (device/isa.h).
# Programs use kernels of bf16 panels (*_pairs, *_tiles) with avx512 only; tests also run those of other instruction sets.
function(trainer_isa_variants module)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${module}/*.isa.cpp")
  if(NOT sources)
    return()
  endif()
  set(flags_plain "")
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(level -O3)
  if(TRAINER_SANITIZE)  # with its checks, the compiler would optimise for minutes
    set(level -O1)
  endif()
  foreach(isa IN LISTS TRAINER_ISA_SETS)
    set(compiled ${sources})
    set(panels TRAINER_BF16_PANELS=1)
    if(NOT isa STREQUAL avx512 AND NOT TRAINER_TESTS)
      list(FILTER compiled EXCLUDE REGEX "_(pairs|tiles)\\.isa\\.cpp$")
      set(panels "")
    endif()
    add_library(trainer_${module}_${isa} OBJECT ${compiled})
    set_target_properties(trainer_${module}_${isa} PROPERTIES UNITY_BUILD OFF)
    target_include_directories(trainer_${module}_${isa} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(trainer_${module}_${isa} PRIVATE trainer_tensor)
    target_compile_definitions(trainer_${module}_${isa} PRIVATE TRAINER_ISA=${isa} ${panels})
    target_compile_options(trainer_${module}_${isa} PRIVATE ${TRAINER_FLAGS} ${TRAINER_WARNINGS} ${level} ${flags_${isa}})
    target_sources(trainer_${module} PRIVATE $<TARGET_OBJECTS:trainer_${module}_${isa}>)
    set_property(GLOBAL APPEND PROPERTY TRAINER_ISA_OBJECTS $<TARGET_OBJECTS:trainer_${module}_${isa}>)
  endforeach()
endfunction()

# trainer_optional(MODULE LIBRARY): the module uses trainer_LIBRARY where it was found and sees TRAINER_HAS_LIBRARY.
function(trainer_optional module library)
  if(TARGET trainer_${library})
    string(TOUPPER "TRAINER_HAS_${library}" found)
    target_link_libraries(trainer_${module} PRIVATE trainer_${library})
    target_compile_definitions(trainer_${module} PRIVATE ${found}=1)
  endif()
endfunction()

# trainer_mpi_modules(MODULE): trainer_mpi_NAME.so for each of TRAINER_MPI_MODULES, next to the program.
function(trainer_mpi_modules module)
  if(NOT TRAINER_MPI_MODULES)
    return()
  endif()
  foreach(mpi IN LISTS TRAINER_MPI_MODULES)
    add_library(trainer_mpi_${mpi} MODULE "${PROJECT_SOURCE_DIR}/src/${module}/mpi/mpi_module.cpp")
    set_target_properties(trainer_mpi_${mpi} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    target_include_directories(trainer_mpi_${mpi} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    target_include_directories(trainer_mpi_${mpi} SYSTEM PRIVATE "${TRAINER_${mpi}_INCLUDE}")
    target_compile_definitions(trainer_mpi_${mpi} PRIVATE TRAINER_MPI_MODULE=1 OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
    target_compile_options(trainer_mpi_${mpi} PRIVATE ${TRAINER_FLAGS} ${TRAINER_WARNINGS})
    target_link_options(trainer_mpi_${mpi} PRIVATE -Wl,-z,undefs)
    add_dependencies(trainer_${module} trainer_mpi_${mpi})
  endforeach()
  list(JOIN TRAINER_MPI_MODULES "\",\"" names)
  target_compile_definitions(trainer_${module} PRIVATE "TRAINER_MPI_MODULES=\"${names}\"")
endfunction()

# Flags of our .cu files. constexpr functions (bf16, Philox) also run on the device.
# nvcc cannot compile the compile-time checks of format strings.
set(TRAINER_CUDA_FLAGS -std=c++20 --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -DFMT_CONSTEVAL= -DFMT_USE_CONSTEVAL=0)
if(TRAINER_WERROR)
  list(APPEND TRAINER_CUDA_FLAGS -Werror=all-warnings)
endif()

# trainer_cuda_sources(MODULE): src/MODULE/cuda, or only its no_cuda.cpp where there is no compiler for
# it. The same sources are compiled a second time for the emulator (tests/cuda/CMakeLists.txt), whose programs link one
# of both: each file remains a separate object in unity builds.
function(trainer_cuda_sources module)
  set(folder "${PROJECT_SOURCE_DIR}/src/${module}/cuda")
  if(NOT TRAINER_HAS_CUDA)
    target_sources(trainer_${module} PRIVATE "${folder}/no_cuda.cpp")
    set_source_files_properties("${folder}/no_cuda.cpp" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cpp$")
  if(TRAINER_HAS_CUDNN)
    list(FILTER sources EXCLUDE REGEX "/no_cudnn\\.cpp$")
    set_source_files_properties("${folder}/cudnn/attention.cpp" PROPERTIES
      COMPILE_DEFINITIONS "NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING;CUDNN_FRONTEND_SKIP_JSON_LIB"
      COMPILE_OPTIONS "-isystem;${TRAINER_cudnn_frontend_INCLUDE};-isystem;${TRAINER_cudnn_INCLUDE}")
  else()
    list(FILTER sources EXCLUDE REGEX "/cudnn/attention\\.cpp$")
  endif()
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${folder}/*.cu")
  target_sources(trainer_${module} PRIVATE ${sources})
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(trainer_${module} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(trainer_${module} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  if(kernels)
    add_library(trainer_${module}_cuda OBJECT ${kernels})
    set_target_properties(trainer_${module}_cuda PROPERTIES UNITY_BUILD OFF)
    target_include_directories(trainer_${module}_cuda PRIVATE "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(trainer_${module}_cuda PRIVATE ${TRAINER_FMT})
    target_compile_options(trainer_${module}_cuda PRIVATE ${TRAINER_CUDA_FLAGS} -Xcompiler=-Wall,-Wextra,-Wshadow)
    target_sources(trainer_${module} PRIVATE $<TARGET_OBJECTS:trainer_${module}_cuda>)
  endif()
endfunction()

# trainer_nccl_sources(MODULE): src/MODULE/nccl, or only its no_nccl.cpp where there is no NCCL. The same sources are
# compiled a second time for the emulator.
function(trainer_nccl_sources module)
  set(folder "${PROJECT_SOURCE_DIR}/src/${module}/nccl")
  if(NOT TRAINER_HAS_NCCL)
    target_sources(trainer_${module} PRIVATE "${folder}/no_nccl.cpp")
    set_source_files_properties("${folder}/no_nccl.cpp" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/no_nccl\\.cpp$")
  target_sources(trainer_${module} PRIVATE ${sources})
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(trainer_${module} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} "${TRAINER_nccl_INCLUDE}")
  target_link_libraries(trainer_${module} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
endfunction()
