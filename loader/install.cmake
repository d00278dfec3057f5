# What a prefix gets besides the programs: headers, libraries, and the ways to find them: find_package(kiln)
# and pkg-config. Nothing in it names the prefix, so that it may be moved.
include(CMakePackageConfigHelpers)
set(KILN_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)

foreach(folder IN LISTS KILN_PACKAGE_INCLUDES ITEMS include)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()

# kiln_core is installed because the static kiln::kiln links it, and has no headers in a prefix.
set_target_properties(kiln_abi PROPERTIES EXPORT_NAME abi)
set_target_properties(kiln_core PROPERTIES EXPORT_NAME internal_core)
install(TARGETS kiln_abi kiln_core kiln kiln_c EXPORT kiln-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT kiln-targets NAMESPACE kiln:: DESTINATION ${KILN_CMAKE_DIR})

configure_package_config_file(kiln-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake
                              INSTALL_DESTINATION ${KILN_CMAKE_DIR})
# Before 1.0 a minor release may change the C++ API; what is loaded is guarded by the C ABI's number.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
              kiln-require.cmake
        DESTINATION ${KILN_CMAKE_DIR})

file(RELATIVE_PATH KILN_PREFIX_FROM_PC
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(kiln.pc.in kiln.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
