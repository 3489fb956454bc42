# peal_ptx_kernels(TARGET SOURCES a.cu ... [DEFINITIONS NAME=VALUE ...]): an object library of the kernels as nvcc
#   compiles them: nvcc -ptx, and what tests/cudasim/ptx/ptx2cpp.py makes of that. Only where there is an nvcc
#   (PEAL_NVCC of cmake/PealCuda.cmake). Link it beside cudasim_ptx. ${TARGET}_TRANSLATED are its C++ files, for
#   cudasim_tsan_test.
# peal_translated_ptx(TARGET a.ptx ...): the same of PTX that is there already; needs no nvcc.

function(peal_translated_ptx target)
  set(translator "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ptx2cpp.py")
  file(GLOB translator_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/translator/*.py")
  set(translated)
  foreach(ptx ${ARGN})
    cmake_path(ABSOLUTE_PATH ptx BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    cmake_path(GET ptx STEM LAST_ONLY stem)
    set(cpp "${CMAKE_CURRENT_BINARY_DIR}/${target}/${stem}.cpp")
    file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/${target}")
    add_custom_command(OUTPUT "${cpp}" COMMAND "${PEAL_PYTHON3}" "${translator}" "${ptx}" "${cpp}"
                       DEPENDS "${ptx}" "${translator}" ${translator_files} COMMENT "Translating ${stem}.ptx" VERBATIM)
    list(APPEND translated "${cpp}")
  endforeach()
  add_library(${target} OBJECT ${translated})
  # Machine-written code: no warnings, and no more optimisation than compiles quickly.
  target_compile_options(${target} PRIVATE -w -g0 -O1)
  target_link_libraries(${target} PRIVATE peal_options cudasim_ptx)
  set(${target}_TRANSLATED ${translated} PARENT_SCOPE)
endfunction()

function(peal_ptx_kernels target)
  cmake_parse_arguments(arg "" "" "SOURCES;DEFINITIONS" ${ARGN})
  list(TRANSFORM arg_DEFINITIONS PREPEND "-D")
  set(compiled)
  foreach(source ${arg_SOURCES})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    cmake_path(GET source STEM LAST_ONLY stem)
    set(ptx "${CMAKE_CURRENT_BINARY_DIR}/${target}/${stem}.ptx")
    add_custom_command(
      OUTPUT "${ptx}"
      COMMAND "${PEAL_NVCC}" -ptx ${PEAL_NVCC_FLAGS} -arch=compute_80 -Werror all-warnings ${arg_DEFINITIONS}
              "-I${PROJECT_SOURCE_DIR}" "-I${PROJECT_SOURCE_DIR}/include" -MD -MF "${ptx}.d" -o "${ptx}" "${source}"
      DEPENDS "${source}" DEPFILE "${ptx}.d" COMMENT "Compiling ${stem}.cu to PTX" VERBATIM)
    list(APPEND compiled "${ptx}")
  endforeach()
  peal_translated_ptx(${target} ${compiled})
  set(${target}_TRANSLATED ${${target}_TRANSLATED} PARENT_SCOPE)
endfunction()
