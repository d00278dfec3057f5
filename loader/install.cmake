# What a prefix gets besides the programs: headers, libraries, and the ways to find them: find_package(kiln)
# and pkg-config. Nothing in it names the prefix, so that it may be moved.
#
# Components, which are the .deb packages too (ci/debian.cmake):
#   command       the programs, what shells complete, manual pages; whatever names no component
#   library       libkiln.so.0, for programs that are there already
#   development   headers, libkiln.so, CMake and pkg-config files
#   static        libkiln.a, for kiln::kiln
include(CMakePackageConfigHelpers)
# Some packagers give absolute folders.
foreach(each LIBDIR INCLUDEDIR)
  file(RELATIVE_PATH CMAKE_INSTALL_${each} ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_${each}})
endforeach()
set(KILN_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)

foreach(folder IN LISTS KILN_PACKAGE_INCLUDES ITEMS include)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
endforeach()

set_target_properties(kiln_abi PROPERTIES EXPORT_NAME abi)
install(TARGETS kiln_abi kiln_c EXPORT kiln-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
# No library to link, so that it has a folder of its own; a wheel has it beside libkiln.so.
install(TARGETS kiln_torch_operators LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kiln COMPONENT library)
install(EXPORT kiln-targets NAMESPACE kiln:: DESTINATION ${KILN_CMAKE_DIR} COMPONENT development)

if(KILN_SELF_CONTAINED)
  # One object of everything that the loader links, in which the symbols of the others are local: a program
  # may link its own libcurl or OpenSSL beside it, of any version.
  set(others ${CURL_LIBRARIES} $<TARGET_FILE:OpenSSL::SSL> $<TARGET_FILE:OpenSSL::Crypto>
             ${LibArchive_LIBRARIES} ${KILN_ZSTD_LIBRARY})
  set(whole ${CMAKE_CURRENT_BINARY_DIR}/self-contained/libkiln.a)
  add_custom_command(OUTPUT ${whole} DEPENDS kiln kiln_core VERBATIM
    COMMAND ${CMAKE_COMMAND} -E rm -rf self-contained
    COMMAND ${CMAKE_COMMAND} -E make_directory self-contained
    COMMAND ${KILN_LINKER} -r -o self-contained/kiln.o --whole-archive $<TARGET_FILE:kiln>
            $<TARGET_FILE:kiln_core> --no-whole-archive ${others}
    COMMAND sh -c "nm=\"$1\"; shift; \"$nm\" --defined-only --extern-only --format=just-symbols \"$@\" | grep -v : | sort -u > self-contained/others"
            sh ${KILN_NM} ${others}
    # A common symbol, of OpenSSL's assembly, cannot be local.
    COMMAND ${KILN_OBJCOPY} --localize-symbols=self-contained/others
            --redefine-sym=OPENSSL_ia32cap_P=kiln_ia32cap_P self-contained/kiln.o
    COMMAND ${CMAKE_AR} rcs ${whole} self-contained/kiln.o)
  add_custom_target(kiln_whole DEPENDS ${whole})
  install(FILES ${whole} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT static)
  install(DIRECTORY ${DLPACK_INCLUDE_DIR}/dlpack DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  file(RELATIVE_PATH KILN_PREFIX_FROM_CMAKE ${CMAKE_INSTALL_PREFIX}/${KILN_CMAKE_DIR} ${CMAKE_INSTALL_PREFIX})
  configure_file(kiln-static.cmake.in kiln-static.cmake @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln-static.cmake DESTINATION ${KILN_CMAKE_DIR} COMPONENT static)
  set(KILN_DEPENDENCIES Threads)
  set(KILN_PC_LIBS "-l:libkiln.a -pthread -ldl")
  set(KILN_PC_REQUIRES "")
else()
  # kiln_core is installed because the static kiln::kiln links it, and has no headers in a prefix.
  set_target_properties(kiln_core PROPERTIES EXPORT_NAME internal_core)
  install(TARGETS kiln_core kiln EXPORT kiln-static
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT static)
  install(EXPORT kiln-static NAMESPACE kiln:: DESTINATION ${KILN_CMAKE_DIR} COMPONENT static)
  set(KILN_DEPENDENCIES "OpenSSL 3.0" CURL LibArchive Threads)
  set(KILN_PC_LIBS "-l:libkiln.a -l:libkiln_core.a -pthread -ldl")
  set(KILN_PC_REQUIRES "libcurl libcrypto libarchive")
endif()

set(KILN_FIND_DEPENDENCIES "")
foreach(dependency IN LISTS KILN_DEPENDENCIES)
  string(APPEND KILN_FIND_DEPENDENCIES "  find_dependency(${dependency})\n")
endforeach()
list(JOIN KILN_DEPENDENCIES ", " KILN_DEPENDENCIES)
configure_package_config_file(kiln-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake
                              INSTALL_DESTINATION ${KILN_CMAKE_DIR})
# Before 1.0 a minor release may change the C++ API; what is loaded is guarded by the C ABI's number.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
              kiln-check.cmake
              kiln-require.cmake
        DESTINATION ${KILN_CMAKE_DIR} COMPONENT development)

file(RELATIVE_PATH KILN_PREFIX_FROM_PC
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(KILN_PC_DLPACK "")
if(NOT KILN_SELF_CONTAINED AND NOT DLPACK_INCLUDE_DIR STREQUAL "/usr/include")
  set(KILN_PC_DLPACK " -I${DLPACK_INCLUDE_DIR}")
endif()
foreach(pc IN ITEMS kiln kiln-cpp)
  configure_file(${pc}.pc.in ${pc}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endforeach()
