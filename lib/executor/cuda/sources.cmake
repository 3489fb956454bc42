# What the GPU executor and its transport are made of, for the library and for the tests that run them on
# simulated GPUs.
#   PEAL_CUDA_KERNEL_SOURCES      kernels; all they know of CUDA is device.h
#   PEAL_CUDA_HOST_SOURCES        host code that calls the CUDA runtime, or finds kernels for it
#   PEAL_CUDA_LOOP_..._SOURCES    the same of the loops alone: for tests and tools/gpu-check, not in the library
set(PEAL_CUDA_KERNEL_SOURCES
    lib/executor/cuda/adamw.cu
    lib/executor/cuda/collective_adamw.cu
    lib/executor/cuda/collective_levels.cu
    lib/executor/cuda/collective_ll.cu
    lib/executor/cuda/collective_ll128.cu
    lib/executor/cuda/collective_simple.cu
    lib/executor/cuda/point_to_point.cu
    lib/zero/cuda/passes.cu
    lib/zero/cuda/squares.cu
    lib/zero/cuda/update.cu)
set(PEAL_CUDA_HOST_SOURCES
    lib/executor/cuda/adamw_launch.cpp
    lib/executor/cuda/agreement.cpp
    lib/executor/cuda/arguments.cpp
    lib/executor/cuda/devices.cpp
    lib/executor/cuda/executor.cpp
    lib/executor/cuda/faults.cpp
    lib/executor/cuda/gpu_direct.cpp
    lib/executor/cuda/kernels.cpp
    lib/executor/cuda/launch.cpp
    lib/executor/cuda/order.cpp
    lib/executor/cuda/proxy.cpp
    lib/executor/cuda/proxy_traffic.cpp
    lib/executor/cuda/residency.cpp
    lib/executor/cuda/retired.cpp
    lib/executor/cuda/setup.cpp
    lib/memory/cuda.cpp
    lib/memory/pieces.cpp
    lib/topology/gpus_cuda.cpp
    lib/zero/cuda/device.cpp
    lib/zero/cuda/kernels.cpp
    transports/cuda_ipc/connect.cpp
    transports/cuda_ipc/device_windows.cpp
    transports/cuda_ipc/handle_post.cpp
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
