# kiln_require(NAME VERSION N [DEV]): the project uses version N of a kernel. States it once, for everything:
#
#   kiln.json            in the build folder: what `kiln lock` reads
#   kiln_required.hpp    kiln::required::geglu_mlp, its name and version for get_kernel; comes with the
#                        target kiln::required
#   kiln-lock            a target: writes kiln.lock beside the project's CMakeLists.txt; commit it
#   kiln-prefetch        a target: installs what kiln.lock has for this machine, and only its bytes
#
# DEV: kiln::required also has the package's own headers, kiln/layers/….hpp. The command kiln fetches them
# when the project is configured, unless the cache has them; from the lock file's digests where there is one.
#
# KILN_LOCKFILE and KILN_EXECUTABLE say where the lock file and the kiln command are.
include_guard(GLOBAL)

set(KILN_LOCKFILE "${PROJECT_SOURCE_DIR}/kiln.lock" CACHE FILEPATH "Digests of the required kernels")
find_program(KILN_EXECUTABLE kiln HINTS ${kiln_PREFIX_DIR}/bin)
set_property(GLOBAL PROPERTY KILN_NO_COMMAND  # a variable would be of this folder alone
             "the command kiln is not found: install it (Debian: kiln), or set KILN_EXECUTABLE")

# CMake has lists without escapes, and no custom target in a folder with '#'.
function(_kiln_check_path path characters)
  if(path MATCHES "[${characters}]")
    message(FATAL_ERROR "kiln_require: '${path}' has one of '${characters}', which CMake cannot have in this path; "
                        "use a folder without it")
  endif()
endfunction()

function(kiln_require name)
  _kiln_check_path("${CMAKE_BINARY_DIR}" ";#")
  _kiln_check_path("${KILN_LOCKFILE}" ";")
  cmake_parse_arguments(PARSE_ARGV 1 REQUIRE "DEV" "VERSION" "")
  if(NOT name MATCHES "^[a-z0-9]+(-[a-z0-9]+)*$")
    message(FATAL_ERROR "kiln_require: '${name}' is not a package name, such as geglu-mlp")
  endif()
  if(NOT REQUIRE_VERSION MATCHES "^[1-9][0-9]*$" OR REQUIRE_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kiln_require(${ARGV}): expected kiln_require(${name} VERSION N [DEV])")
  endif()
  get_property(known GLOBAL PROPERTY KILN_REQUIRED_${name})
  if(known AND NOT known EQUAL REQUIRE_VERSION)
    message(FATAL_ERROR "kiln_require(${name} VERSION ${REQUIRE_VERSION}): version ${known} is required "
                        "elsewhere in this project; a lock file has one version of each kernel")
  endif()
  if(NOT known)
    set_property(GLOBAL PROPERTY KILN_REQUIRED_${name} ${REQUIRE_VERSION})
    set_property(GLOBAL APPEND PROPERTY KILN_REQUIRED ${name})
  endif()
  _kiln_write_required()
  if(REQUIRE_DEV)
    _kiln_add_headers(${name} ${REQUIRE_VERSION})
  endif()
endfunction()

function(_kiln_add_headers name version)
  get_property(added GLOBAL PROPERTY KILN_HEADERS)
  if(name IN_LIST added)
    return()
  endif()
  # Where the kernel is locked, by its digests: the project is configured anew when they change.
  set(lock "")
  if(EXISTS "${KILN_LOCKFILE}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${KILN_LOCKFILE}")
    file(READ "${KILN_LOCKFILE}" locked)
    string(JSON all ERROR_VARIABLE damaged GET "${locked}" kernels)
    string(JSON of_this ERROR_VARIABLE not_locked GET "${locked}" kernels ${name})
    if(damaged OR NOT not_locked)  # kiln says what is wrong with a file that cannot be read
      set(lock --lock "${KILN_LOCKFILE}")
    endif()
  endif()
  if(NOT KILN_EXECUTABLE)
    get_property(why GLOBAL PROPERTY KILN_NO_COMMAND)
    message(FATAL_ERROR "kiln_require(${name} VERSION ${version} DEV): ${why}")
  endif()
  execute_process(
    COMMAND "${KILN_EXECUTABLE}" install --dev --json ${name}@${version} ${lock}
    OUTPUT_VARIABLE document ERROR_VARIABLE said RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "kiln_require(${name} VERSION ${version} DEV): ${said}${document}")
  endif()
  string(JSON include GET "${document}" dev 0 include)
  _kiln_check_path("${include}" ";")
  target_include_directories(kiln-required INTERFACE "${include}")
  set_property(GLOBAL APPEND PROPERTY KILN_HEADERS ${name})
endfunction()

function(_kiln_write_required)
  set(folder "${CMAKE_BINARY_DIR}/kiln")
  get_property(names GLOBAL PROPERTY KILN_REQUIRED)
  list(SORT names)
  set(kernels "")
  set(constants "")
  foreach(name IN LISTS names)
    get_property(version GLOBAL PROPERTY KILN_REQUIRED_${name})
    string(REPLACE "-" "_" identifier ${name})
    if(identifier MATCHES "^[0-9]")
      set(identifier _${identifier})
    endif()
    list(APPEND kernels "\"${name}\": {\"version\": ${version}}")
    string(APPEND constants "inline constexpr Required ${identifier}{\"${name}\", ${version}};\n")
  endforeach()
  list(JOIN kernels ", " kernels)
  # Written at each call, and only if it differs: the last one has them all.
  file(CONFIGURE OUTPUT "${folder}/kiln.json" CONTENT
       "{\"schema\": \"kiln.requirements/1\", \"kernels\": {@kernels@}}\n" @ONLY)
  file(CONFIGURE OUTPUT "${folder}/include/kiln_required.hpp" CONTENT [[
// Made by kiln_require from the project's CMakeLists.txt.
#pragma once

#include <string_view>

namespace kiln::required {

/// get_kernel(geglu_mlp.name, {.version = geglu_mlp.version})
struct Required {
  std::string_view name;
  int version;
};

@constants@
}  // namespace kiln::required
]] @ONLY)
  if(TARGET kiln-required)
    return()
  endif()
  add_library(kiln-required INTERFACE)
  add_library(kiln::required ALIAS kiln-required)
  target_include_directories(kiln-required INTERFACE "${folder}/include")
  if(KILN_EXECUTABLE)
    set(lock "${KILN_EXECUTABLE}" lock --requirements "${folder}/kiln.json" --lock "${KILN_LOCKFILE}")
    set(prefetch "${KILN_EXECUTABLE}" install --lock "${KILN_LOCKFILE}")
  else()
    get_property(why GLOBAL PROPERTY KILN_NO_COMMAND)
    set(lock "${CMAKE_COMMAND}" -E echo "${why}" COMMAND "${CMAKE_COMMAND}" -E false)
    set(prefetch ${lock})
  endif()
  add_custom_target(kiln-lock COMMAND ${lock} VERBATIM USES_TERMINAL)
  add_custom_target(kiln-prefetch COMMAND ${prefetch} VERBATIM USES_TERMINAL)
endfunction()
