# cudasim_tsan_test(NAME SOURCES a.cpp kernel.cu ... [DEFINITIONS X=1 ...] [LABELS ...] [SHARED]): a
#   GoogleTest program of these sources on the simulator's core, built by clang++ with the thread sanitizer,
#   in presets without a sanitizer of their own: gcc's dies of the number of fibers. Sources are instrumented, the core is not. Only where clang++
#   and its sanitizer's library are there; says so where they are not.
# cudasim_tsan_parts(SOURCES ...): objects, compiled once, that programs take by SHARED; called once, by tests/cuda.
# cudasim_tsan_core(SOURCES ...): the core's objects for these programs; called once, by tests/cudasim.

find_program(PEAL_CLANGXX clang++ DOC "clang++, for tests under its thread sanitizer")
mark_as_advanced(PEAL_CLANGXX)
if(PEAL_CLANGXX AND NOT DEFINED PEAL_CLANG_TSAN)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/tsan-probe")
  file(WRITE "${probe}.cpp" "int main() { return 0; }\n")
  execute_process(COMMAND "${PEAL_CLANGXX}" -fsanitize=thread "${probe}.cpp" -o "${probe}"
                  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(PEAL_CLANG_TSAN OFF CACHE INTERNAL "whether clang++ links the thread sanitizer")
  else()
    set(PEAL_CLANG_TSAN ON CACHE INTERNAL "whether clang++ links the thread sanitizer")
  endif()
endif()
if(NOT PEAL_CLANGXX)
  message(STATUS "No clang++: no kernel tests under the thread sanitizer")
elseif(NOT PEAL_CLANG_TSAN)
  message(STATUS "${PEAL_CLANGXX} does not link -fsanitize=thread: no kernel tests under the thread sanitizer")
endif()

# A custom command that compiles SOURCE to OBJECT with further FLAGS.
function(cudasim_tsan_compile object source)
  cmake_path(GET object PARENT_PATH folder)
  cmake_path(GET source FILENAME shown)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${PEAL_CLANGXX}" -std=c++20 -O1 -g1 -fno-omit-frame-pointer
            -ffp-contract=off -Wall -Wextra -Wno-unknown-attributes -Werror -DCUDASIM_TSAN
            "-I${PROJECT_SOURCE_DIR}/tests/cudasim/include" "-I${PROJECT_SOURCE_DIR}"
            "-I${PROJECT_SOURCE_DIR}/include" ${ARGN} -MD -MF "${object}.d" -MT "${object}"
            -x c++ -c "${source}" -o "${object}"
    DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "Compiling ${shown} for the thread sanitizer" VERBATIM)
endfunction()

function(cudasim_tsan_core)
  if(NOT PEAL_CLANG_TSAN)
    return()
  endif()
  set(objects)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    cmake_path(GET source STEM stem)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/tsan/${stem}.o")
    cudasim_tsan_compile("${object}" "${source}")
    list(APPEND objects "${object}")
  endforeach()
  add_custom_target(cudasim_tsan_core DEPENDS ${objects})
  set_property(GLOBAL PROPERTY CUDASIM_TSAN_CORE ${objects})
endfunction()

function(cudasim_tsan_parts)
  if(NOT PEAL_CLANG_TSAN OR PEAL_SANITIZE)
    return()
  endif()
  set(objects)
  foreach(source ${ARGN})
    cmake_path(GET source STEM stem)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/tsan-parts/${stem}.o")
    cudasim_tsan_compile("${object}" "${source}" -fsanitize=thread -DFMT_HEADER_ONLY=1)
    list(APPEND objects "${object}")
  endforeach()
  add_custom_target(cudasim_tsan_parts DEPENDS ${objects})
  set_property(GLOBAL PROPERTY CUDASIM_TSAN_PARTS ${objects})
endfunction()

function(cudasim_tsan_test name)
  cmake_parse_arguments(arg "SHARED" "" "SOURCES;DEFINITIONS;LABELS" ${ARGN})
  if(PEAL_SANITIZE)
    return()
  endif()
  if(NOT PEAL_CLANG_TSAN)
    message(STATUS "${name} is left out: no clang++ with the thread sanitizer")
    return()
  endif()
  list(TRANSFORM arg_DEFINITIONS PREPEND "-D")
  set(objects)
  foreach(source ${arg_SOURCES})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    cmake_path(GET source STEM stem)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.tsan/${stem}.o")
    cudasim_tsan_compile("${object}" "${source}" -fsanitize=thread ${arg_DEFINITIONS})
    list(APPEND objects "${object}")
  endforeach()
  set(prerequisites cudasim_tsan_core)
  if(arg_SHARED)
    get_property(parts GLOBAL PROPERTY CUDASIM_TSAN_PARTS)
    list(APPEND objects ${parts})
    list(APPEND prerequisites cudasim_tsan_parts)
  endif()
  get_property(core GLOBAL PROPERTY CUDASIM_TSAN_CORE)
  set(program "${CMAKE_CURRENT_BINARY_DIR}/${name}.tsan/${name}")
  # The core comes first: of templates that both use, the linker takes its copies, which are not instrumented.
  add_custom_command(
    OUTPUT "${program}"
    COMMAND "${PEAL_CLANGXX}" -fsanitize=thread ${core} ${objects} "$<TARGET_FILE:GTest::gtest>"
            "$<TARGET_FILE:GTest::gtest_main>" -lpthread -o "${program}"
    DEPENDS ${core} ${objects} COMMENT "Linking ${name}" VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${program}")
  add_dependencies(${name} ${prerequisites})
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "/.*" "" folder "${folder}")
  list(APPEND arg_LABELS "${folder}")
  list(REMOVE_DUPLICATES arg_LABELS)
  add_test(NAME ${name} COMMAND "${program}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${PEAL_TEST_TIMEOUT} LABELS "${arg_LABELS}" ENVIRONMENT
                       "TSAN_OPTIONS=halt_on_error=1:exitcode=99")
endfunction()
