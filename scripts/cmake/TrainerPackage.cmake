# The files that `cmake --install` installs, and the packages that CPack creates from them: an archive and a .deb.
#   cmake --install build --strip --prefix /usr/local
#   cpack --config build/CPackConfig.cmake -B packages
include(GNUInstallDirs)
set(TRAINER_SHARE "${CMAKE_INSTALL_DATADIR}/trainer")

if(TRAINER_PORTABLE)
  # bin/trainer is a start script; lib/trainer has the program and the libraries that a system may lack or have in a version that is too old.
  # $ORIGIN/..: the folder in which a Python environment has its MPI.
  set_target_properties(trainer PROPERTIES INSTALL_RPATH "\$ORIGIN;\$ORIGIN/..")
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/start.sh" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME trainer)
  install(TARGETS trainer RUNTIME_DEPENDENCY_SET libraries RUNTIME DESTINATION lib/trainer)
  install(RUNTIME_DEPENDENCY_SET libraries DESTINATION lib/trainer
          PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|pthread|rt)\\.so")
else()
  # The loader does not search the folders of CUDA's libraries.
  set_target_properties(trainer PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib/trainer;${TRAINER_LOADED_FOLDERS}"
                        INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS trainer RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
foreach(mpi IN LISTS TRAINER_MPI_MODULES)
  install(TARGETS trainer_mpi_${mpi} LIBRARY DESTINATION lib/trainer)
endforeach()
# share/trainer has the folders of a checkout that the README, the manual and the configurations refer to.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" "${PROJECT_SOURCE_DIR}/data" "${PROJECT_SOURCE_DIR}/docs"
        DESTINATION "${TRAINER_SHARE}" PATTERN large EXCLUDE)
foreach(page README CHANGELOG CONTRIBUTING)
  install(FILES "${PROJECT_SOURCE_DIR}/${page}.md" DESTINATION "${TRAINER_SHARE}")
endforeach()
file(GLOB measurements "${PROJECT_SOURCE_DIR}/tests/bench/*.md" "${PROJECT_SOURCE_DIR}/tests/bench/*.svg")
install(FILES ${measurements} DESTINATION "${TRAINER_SHARE}/tests/bench")
install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/slurm_job.sh" DESTINATION "${TRAINER_SHARE}/scripts")
foreach(folder "${TRAINER_SHARE}" "${CMAKE_INSTALL_DOCDIR}")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${folder}")
endforeach()

# The program itself prints its manual page and completions, from the declarations that --help prints. On
# Debian, zsh searches different folders in the prefix /usr than in other prefixes.
install(CODE "
  set(trainer \"$<TARGET_FILE:trainer>\")
  set(made \"${PROJECT_BINARY_DIR}/install\")
  set(share \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
  set(zsh site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\" AND EXISTS /etc/debian_version)
    set(zsh vendor-completions)
  endif()
  function(put name folder)
    file(MAKE_DIRECTORY \"\${made}\")
    execute_process(COMMAND \"\${trainer}\" \${ARGN} OUTPUT_FILE \"\${made}/\${name}\" RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR \"\${trainer} \${ARGN}: \${status}\")
    endif()
    file(INSTALL DESTINATION \"\${folder}\" TYPE FILE FILES \"\${made}/\${name}\")
  endfunction()
  put(trainer.1 \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\" manual)
  put(trainer \"\${share}/bash-completion/completions\" completion bash)
  put(_trainer \"\${share}/zsh/\${zsh}\" completion zsh)
  put(trainer.fish \"\${share}/fish/vendor_completions.d\" completion fish)
")

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME trainer)
set(CPACK_PACKAGE_VERSION "${TRAINER_VERSION}")
set(CPACK_PACKAGE_VENDOR "the trainer's authors")
# The packager is its maintainer, as with Debian's own tools: DEBFULLNAME and DEBEMAIL.
set(CPACK_PACKAGE_CONTACT "packed without a name <nobody@example.invalid>")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pretrains GPT-style language models with tensor parallelism")
set(CPACK_PACKAGE_DESCRIPTION "One program and one configuration file pretrain GPT-style language models on CPUs and GPUs, \
on one machine or many, with data, fully sharded (FSDP) or tensor parallelism.")
set(CPACK_STRIP_FILES ON)
string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" platform)
set(CPACK_PACKAGE_FILE_NAME "trainer-${TRAINER_VERSION}-${platform}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
if(TRAINER_PORTABLE)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36)")
else()
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the packages of the libraries that the program uses
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin | mpich")
include(CPack)
