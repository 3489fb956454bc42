# Whether and how CUDA is compiled.
#
# PEAL_CUDA: ON compiles the kernels with nvcc and links libcudart statically; OFF leaves all of that out, and the
#   library says so when asked for a GPU. Default: ON where an nvcc of 12.8 or newer is found, but not under
#   sanitizers.
# PEAL_NVCC: that compiler, also without PEAL_CUDA; NOTFOUND if there is none. PEAL_NVCC_FLAGS: the language and what
#   decides the arithmetic of kernels, for whoever calls it by hand.
# peal_cuda_sources(TARGET): marks a module of the library as holding kernels or calling the CUDA runtime.
# peal_simulated_kernels(TARGET SOURCES a.cu ...): an object library of kernels compiled by the host compiler for
#   the simulator of tests/cudasim/. In the whole folder (CMakeLists.txt) that calls it these sources are the host
#   compiler's.

set(PEAL_LEAST_NVCC 12.8)  # the first that knows sm_100
set(PEAL_NVCC_FLAGS -std=c++20 -fmad=false)
set(PEAL_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities that kernels are compiled for")

find_program(PEAL_NVCC nvcc HINTS "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin
             DOC "CUDA compiler; not needed without PEAL_CUDA")
mark_as_advanced(PEAL_NVCC)
set(why "no nvcc on PATH or in /usr/local/cuda/bin")
set(usable OFF)
if(PEAL_NVCC)
  execute_process(COMMAND "${PEAL_NVCC}" --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  if(version MATCHES "release [0-9.]+, V([0-9.]+)")
    set(PEAL_NVCC_VERSION "${CMAKE_MATCH_1}")
    set(why "${PEAL_NVCC} is ${PEAL_NVCC_VERSION}")
    if(PEAL_NVCC_VERSION VERSION_LESS PEAL_LEAST_NVCC)
      string(APPEND why ", and sm_100 needs ${PEAL_LEAST_NVCC}")
    else()
      set(usable ON)
    endif()
  else()
    set(why "${PEAL_NVCC} --version says no version")
  endif()
endif()
if(NOT usable)
  set(PEAL_NVCC NOTFOUND)
endif()
set(default ${usable})
if(PEAL_SANITIZE)
  set(default OFF)
endif()
option(PEAL_CUDA "Compile for NVIDIA GPUs" ${default})
if(PEAL_CUDA AND NOT usable)
  message(FATAL_ERROR "PEAL_CUDA=ON, but ${why}. Install the CUDA toolkit, put its nvcc on PATH, or use "
                      "-DPEAL_CUDA=OFF.")
endif()

if(PEAL_CUDA)
  set(CMAKE_CUDA_COMPILER "${PEAL_NVCC}")
  # One PTX, that of the oldest architecture, is compiled for each of them and kept for those to come: kernels use
  # nothing newer, and nvcc's front end, the dearer half of a compilation, runs once. CMake cannot say that.
  list(SORT PEAL_CUDA_ARCHITECTURES COMPARE NATURAL)
  list(GET PEAL_CUDA_ARCHITECTURES 0 oldest)
  list(TRANSFORM PEAL_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE codes)
  list(JOIN codes "," codes)
  set(PEAL_NVCC_TARGETS "-gencode=arch=compute_${oldest},code=[${codes},compute_${oldest}]")
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Of nvcc's C++20, CMake 3.25 does not know. It is what CMAKE_CXX_STANDARD asks of it.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_SEPARABLE_COMPILATION OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # ptxas says what registers each kernel takes. cmake/nvcc-report keeps that beside the object, as OBJECT.ptxas,
  # for tests/cuda/ptxas_test, instead of printing it.
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/nvcc-report" ${CMAKE_CXX_COMPILER_LAUNCHER})
  message(STATUS "PEAL_CUDA=ON: ${why}; for ${codes} and PTX of ${oldest}")
elseif(usable)
  message(STATUS "PEAL_CUDA=OFF: asked for, or sanitizers; ${why}")
else()
  message(STATUS "PEAL_CUDA=OFF: ${why}")
endif()

function(peal_cuda_sources target)
  if(PEAL_CUDA)
    set_target_properties(${target} PROPERTIES CUDA_VISIBILITY_PRESET hidden)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Werror=all-warnings>"
      "$<$<COMPILE_LANGUAGE:CUDA>:${PEAL_NVCC_TARGETS}>"
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -v -Xfatbin -compress-all>"
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall,-Wextra,-Wshadow,-Werror>")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
endfunction()

function(peal_simulated_kernels target)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  set_source_files_properties(${arg_SOURCES} PROPERTIES LANGUAGE CXX)
  add_library(${target} OBJECT ${arg_SOURCES})
  target_include_directories(${target} BEFORE PRIVATE "${PROJECT_SOURCE_DIR}/tests/cudasim/include")
  target_link_libraries(${target} PRIVATE peal_options peal_headers)
endfunction()
