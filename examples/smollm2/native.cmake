# smollm2_for_this_machine(TARGET): the products with quantised weights are the example's own, in vectors that the compiler fits to the CPU
# that it is told of. heed itself needs no such flag.
include(CheckCXXCompilerFlag)
function(smollm2_for_this_machine target)
  foreach(flag -march=native -mcpu=native)
    string(MAKE_C_IDENTIFIER "smollm2_has${flag}" has_flag)
    check_cxx_compiler_flag(${flag} ${has_flag})
    if(${has_flag})
      target_compile_options(${target} PRIVATE ${flag})
      break()
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ 12 takes its own AVX-512 intrinsics, as Eigen uses them, for uninitialised reads; and it tells those who pass vectors wider than
    # the CPU's, which nobody outside of these programs sees, that another version might do so in another way.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-uninitialized -Wno-psabi)
  endif()
endfunction()
