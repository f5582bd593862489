# Version and commit of the sources. As a script, it writes them into a header at every build, so that a program prints the
# commit it was built from, not the one its build folder was configured at:
#   cmake -DSOURCE=folder -DPROJECT=0.1.0 -DHEADER=file -P FindVersion.cmake

# find_version(SOURCE PROJECT VERSION COMMIT): the version is the newest tag v1.2.3 of the history and the number of
# commits since, "1.2.3+45"; without a tag it is PROJECT. The commit ends with "-dirty" if tracked files differ from it,
# and is empty if the sources are not the root of a Git checkout.
function(find_version source project version commit)
  set(git ${CMAKE_COMMAND} -E env GIT_OPTIONAL_LOCKS=0 git -C "${source}")
  execute_process(COMMAND ${git} rev-parse --show-prefix
                  RESULT_VARIABLE status OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(found_commit "")
  set(tag "")
  if(status EQUAL 0 AND prefix STREQUAL "")  # else the sources are in a different repository
    execute_process(COMMAND ${git} describe --always --dirty --abbrev=12 --exclude=*
                    OUTPUT_VARIABLE found_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${git} describe --tags --long --match "v[0-9]*"
                    OUTPUT_VARIABLE tag OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(found "${project}")
  if(tag MATCHES "^v([0-9][0-9.]*)-([0-9]+)-g[0-9a-f]+$")
    set(found "${CMAKE_MATCH_1}")
    if(NOT CMAKE_MATCH_2 EQUAL 0)
      string(APPEND found "+${CMAKE_MATCH_2}")
    endif()
  endif()
  set(${version} "${found}" PARENT_SCOPE)
  set(${commit} "${found_commit}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  find_version("${SOURCE}" "${PROJECT}" version commit)
  # The header is written only if it changes, so the same commit compiles nothing again.
  file(CONFIGURE OUTPUT "${HEADER}" @ONLY CONTENT [[#pragma once
#define TRAINER_VERSION "@version@"
#define TRAINER_COMMIT "@commit@"
]])
endif()
