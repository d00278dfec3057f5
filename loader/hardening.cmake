# What every optimised build of Kiln has against the bugs that it may still have: that of a checkout, the packages of
# ci/package, and a project that builds Kiln inside. tests/install/hardened.sh looks for it in what came out.
#
# A build for debugging is for people, and one with sanitizers checks more.
option(KILN_HARDEN "Compile and link optimised builds with what stops exploits" ON)
if(NOT KILN_HARDEN OR KILN_SANITIZE)
  return()
endif()

include(CheckCXXCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)  # with CMAKE_POSITION_INDEPENDENT_CODE, programs are linked with -pie

# In Debug, and where nobody chose a type, nothing is optimised, and _FORTIFY_SOURCE only warns.
set(optimised "$<CONFIG:Release,RelWithDebInfo,MinSizeRel,None>")
set(compile -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
# Of libstdc++ and of libc++: an index past the end stops the program. No layout changes.
list(APPEND compile -D_GLIBCXX_ASSERTIONS -U_LIBCPP_HARDENING_MODE
  -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST)
# One that the compiler has for this processor: control flow of x86_64, of aarch64; a stack that grows page by page.
foreach(flag IN ITEMS -fcf-protection=full -mbranch-protection=standard -fstack-clash-protection)
  string(MAKE_C_IDENTIFIER "KILN_HAS${flag}" has)
  check_cxx_compiler_flag(${flag} ${has})
  if(${has})
    list(APPEND compile ${flag})
  endif()
endforeach()
add_compile_options("$<${optimised}:${compile}>")
add_link_options("$<${optimised}:LINKER:-z,relro,-z,now,-z,noexecstack>")
# It names a binary in a report of a crash. zig knows it after -Wl alone, and CMake's LINKER: says -Xlinker to zig.
add_link_options("$<${optimised}:-Wl,--build-id=sha1>")
