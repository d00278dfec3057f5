# The .deb packages, by `cpack -G DEB` in a build folder that is configured for /usr: ci/package does it.
#
#   kiln         the programs                          component command
#   libkiln0     libkiln.so.0                          component library
#   libkiln-dev  headers, static library, CMake files  components development and static
set(KILN_MAINTAINER "Kiln developers <kiln@packages.invalid>" CACHE STRING "Who answers for the packages")
set(KILN_DEBIAN_REVISION 1 CACHE STRING "Counts the packages of one version of Kiln")

# Dated by the last commit: two builds of one commit say the same.
execute_process(COMMAND git log -1 --format=%cD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                OUTPUT_VARIABLE KILN_COMMIT_DATE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT KILN_COMMIT_DATE)
  string(TIMESTAMP KILN_COMMIT_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()

# Each package has a folder of documents, made when the build is configured; gzip -n: without time and name.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
foreach(pair IN ITEMS command=kiln library=libkiln0 development=libkiln-dev)
  string(REGEX MATCH "^(.*)=(.*)$" pair ${pair})
  set(component ${CMAKE_MATCH_1})
  set(package ${CMAKE_MATCH_2})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/debian/${package})
  configure_file(ci/debian/changelog.in ${folder}/changelog.Debian @ONLY)
  configure_file(CHANGELOG.md ${folder}/changelog COPYONLY)
  foreach(text IN ITEMS changelog changelog.Debian)
    execute_process(COMMAND gzip -9 -n -c ${folder}/${text} OUTPUT_FILE ${folder}/${text}.gz COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  install(FILES ci/debian/copyright ${folder}/changelog.gz ${folder}/changelog.Debian.gz
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  if(EXISTS ${PROJECT_SOURCE_DIR}/ci/debian/${package}.lintian-overrides)
    install(FILES ci/debian/${package}.lintian-overrides RENAME ${package}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${component})
  endif()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kiln)
set(CPACK_PACKAGE_CONTACT "${KILN_MAINTAINER}")
set(CPACK_PACKAGE_VENDOR Kiln)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL command library development static)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
foreach(component IN ITEMS COMMAND LIBRARY DEVELOPMENT)
  string(TOLOWER ${component} group)
  set(CPACK_COMPONENT_${component}_GROUP ${group})
endforeach()
set(CPACK_COMPONENT_STATIC_GROUP development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${KILN_DEBIAN_REVISION})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SOURCE kiln)
set(version ${PROJECT_VERSION}-${KILN_DEBIAN_REVISION})

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME kiln)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "prebuilt GPU kernels: find, install and publish them
The command of Kiln, a hub and loader of prebuilt GPU kernels for C++ and C.
It says which binary of a kernel fits this machine and why, installs, verifies
and locks kernels, and publishes them to a registry.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkiln0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
configure_file(ci/debian/shlibs.in ${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs @ONLY)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
    ${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs ${PROJECT_SOURCE_DIR}/ci/debian/triggers)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "prebuilt GPU kernels: the loader as a C library
One call picks the binary of a GPU kernel for this GPU, driver and C library,
installs, verifies and loads it. This package has the shared library that
programs in C, Python and other languages call.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkiln-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libkiln0 (= ${version}), libdlpack-dev, libcurl4-openssl-dev, libssl-dev, libarchive-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "kiln (= ${version}), cmake, pkg-config")
set(CPACK_COMPONENT_GROUP_DEVELOPMENT_DESCRIPTION "prebuilt GPU kernels: headers and static library
One call picks the binary of a GPU kernel for this GPU, driver and C library,
installs, verifies and loads it. This package has what programs in C++ and C
are built with: headers, those of the packages' layers too, the static
library of the C++ loader, and files for CMake and pkg-config.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${CPACK_COMPONENT_GROUP_DEVELOPMENT_DESCRIPTION}")
include(CPack)
