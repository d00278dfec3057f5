# kiln_package_check(NAME SOURCES…): a package's numeric check as the program NAME. It has the package's own headers, of the
# folder include beside that of the CMakeLists.txt, before those that this Kiln came with.
function(kiln_package_check name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/../include)
  target_link_libraries(${name} PRIVATE kiln::kiln $<TARGET_NAME_IF_EXISTS:kiln_warnings>)
endfunction()
