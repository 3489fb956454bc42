# What the GPU executor and its transport are made of, for the library and for the tests that run them on
# simulated GPUs.
#   PEAL_CUDA_KERNEL_SOURCES      kernels; all they know of CUDA is device.h
#   PEAL_CUDA_HOST_SOURCES        host code that calls the CUDA runtime, or finds kernels for it
#   PEAL_CUDA_LOOP_..._SOURCES    the same of the loops alone: for tests and tools/gpu-check, not in the library
set(PEAL_CUDA_KERNEL_SOURCES lib/executor/cuda/adamw.cu)
set(PEAL_CUDA_HOST_SOURCES
    lib/executor/device_absent.cpp
    lib/memory/cuda.cpp
    transports/cuda_ipc/connect.cpp
    transports/cuda_ipc/device_windows.cpp
    transports/cuda_ipc/host_windows.cpp
    transports/cuda_ipc/identity.cpp
    transports/cuda_ipc/lingering.cpp
    transports/cuda_ipc/mapper.cpp
    transports/cuda_ipc/memory.cpp
    transports/cuda_ipc/regions.cpp
    transports/cuda_ipc/verify.cpp
    transports/cuda_ipc/watch.cpp
    transports/cuda_ipc/window.cpp)
set(PEAL_CUDA_LOOP_KERNEL_SOURCES lib/executor/cuda/loops_kernels.cu)
set(PEAL_CUDA_LOOP_HOST_SOURCES lib/executor/cuda/loops_table.cpp)
foreach(list PEAL_CUDA_KERNEL_SOURCES PEAL_CUDA_HOST_SOURCES PEAL_CUDA_LOOP_KERNEL_SOURCES
             PEAL_CUDA_LOOP_HOST_SOURCES)
  list(TRANSFORM ${list} PREPEND "${PROJECT_SOURCE_DIR}/")
endforeach()
