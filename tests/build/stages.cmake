# The stages of the build matrix, and the whole of it on a small package.
kiln_test(expand_test expand_test.cpp LIBRARIES kiln_build_matrix)
kiln_test(recipe_test recipe_test.cpp LIBRARIES kiln_build_matrix)
kiln_test(execute_test execute_test.cpp LIBRARIES kiln_build_matrix)
kiln_test(inspect_test inspect_test.cpp LIBRARIES kiln_build_matrix)
kiln_test(pack_test pack_test.cpp LIBRARIES kiln_build_matrix LibArchive::LibArchive)
kiln_paths(expand_test matrix_paths.hpp kMatrix=${PROJECT_SOURCE_DIR}/build-matrix/matrix.json)
target_compile_definitions(inspect_test PRIVATE KILN_TEST_CXX="${CMAKE_CXX_COMPILER}")

# 77: skipped, the pinned compilers are not there.
add_executable(build_end_to_end_test end_to_end_test.cpp)
target_link_libraries(build_end_to_end_test PRIVATE
  kiln_build_matrix kiln_rooms doctest::doctest kiln_warnings ${CMAKE_DL_LIBS})
kiln_paths(build_end_to_end_test end_to_end_paths.hpp
  kBuildProgram=$<TARGET_FILE:kiln-build>
  kToolchains=${PROJECT_SOURCE_DIR}/build/toolchains
  kFixtures=${CMAKE_CURRENT_SOURCE_DIR}/fixtures)
add_dependencies(build_end_to_end_test kiln-build)
add_test(NAME build_end_to_end_test COMMAND build_end_to_end_test)
kiln_unit_tests(build_end_to_end_test build_end_to_end_test)
set_tests_properties(build_end_to_end_test PROPERTIES
  SKIP_RETURN_CODE 77 TIMEOUT 600 COST 40)
if(KILN_SANITIZE)
  # NVRTC 11.8 leaves memory of its own behind; LeakSanitizer would fail every step that compiles.
  set_property(TEST build_end_to_end_test APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  target_compile_definitions(build_end_to_end_test PRIVATE KILN_MOST_IDLE_SECONDS=6.0)
else()
  target_compile_definitions(build_end_to_end_test PRIVATE KILN_MOST_IDLE_SECONDS=2.0)
endif()
