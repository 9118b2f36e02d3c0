# The back ends of llama.cpp that are compiled beside the CPU's: PYLLMCANCEL_BACKEND names them, select_backends() turns the
# names into llama.cpp's GGML_*. What each needs of the machine is looked for before anything is compiled: llama.cpp's own
# words for its absence do not say what to install. A plain GGML_* goes to llama.cpp as it is, and nothing is looked for.

set(PYLLMCANCEL_BACKEND "" CACHE STRING "Back ends beside the CPU's, separated by commas: cuda, vulkan, metal, hip, sycl, blas")
set(PYLLMCANCEL_KNOWN_BACKENDS cuda vulkan metal hip sycl blas)

# Ends the configuration: `lacks` is a sentence, the rest are lines that say what to do.
function(refuse_backend name lacks)
  list(JOIN ARGN "\n  " lines)
  # Forgotten, so that the next attempt in the same build directory looks again.
  unset(HAVE_SYCL CACHE)
  message(FATAL_ERROR "PYLLMCANCEL_BACKEND=${name}: ${lacks}\n  ${lines}")
endfunction()

function(look_for_cuda)
  find_package(CUDAToolkit QUIET)
  set(advice
    "NVIDIA's packages:  apt install cuda-toolkit, after https://developer.nvidia.com/cuda-downloads"
    "Debian, Ubuntu:     apt install nvidia-cuda-toolkit"
    "A toolkit in another place:  CUDACXX=/usr/local/cuda/bin/nvcc pip install ."
    "cuBLAS in another place:     -Ccmake.define.CUDA_cublas_LIBRARY=/…/libcublas.so")
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    refuse_backend(cuda "NVIDIA's compiler nvcc was not found. Install the CUDA toolkit:" ${advice})
  elseif(NOT TARGET CUDA::cublas)
    refuse_backend(cuda "the CUDA toolkit at ${CUDAToolkit_LIBRARY_ROOT} has no cuBLAS. Install it:" ${advice})
  endif()
  # A toolkit that is not on the PATH is found above, but not by CMake's search for the compiler.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "NVIDIA's compiler")
  endif()
endfunction()

function(look_for_vulkan)
  set(advice
    "Debian 13, Ubuntu 24.04, or newer:  apt install libvulkan-dev glslc spirv-headers"
    "Fedora:                             dnf install vulkan-loader-devel glslc spirv-headers-devel"
    "or the Vulkan SDK, https://vulkan.lunarg.com, with its setup-env.sh")
  find_package(Vulkan QUIET COMPONENTS glslc)
  find_package(SPIRV-Headers CONFIG QUIET)
  set(lacking "")
  if(NOT Vulkan_LIBRARY OR NOT Vulkan_INCLUDE_DIR)
    list(APPEND lacking "Vulkan's loader and headers")
  endif()
  if(NOT Vulkan_GLSLC_EXECUTABLE)
    list(APPEND lacking "the shader compiler glslc")
  endif()
  if(NOT SPIRV-Headers_FOUND)
    list(APPEND lacking "SPIRV-Headers")
  endif()
  if(lacking)
    list(JOIN lacking ", " lacking)
    refuse_backend(vulkan "not found: ${lacking}. Install and build again:" ${advice})
  endif()
  file(STRINGS ${Vulkan_INCLUDE_DIR}/vulkan/vulkan_core.h settings REGEX "define VK_EXT_layer_settings 1" LIMIT_COUNT 1)
  if(NOT settings)
    refuse_backend(vulkan "the headers in ${Vulkan_INCLUDE_DIR} are older than 1.3.272, which llama.cpp needs." ${advice})
  endif()
endfunction()

function(look_for_metal)
  if(NOT APPLE)
    refuse_backend(metal "Metal is macOS's, and this is ${CMAKE_SYSTEM_NAME}."
      "On macOS it is compiled in any case; -Ccmake.define.GGML_METAL=OFF leaves it out.")
  endif()
endfunction()

function(look_for_hip)
  set(rocm /opt/rocm)
  if(DEFINED ENV{ROCM_PATH})
    set(rocm $ENV{ROCM_PATH})
  endif()
  set(lacking "")
  foreach(package IN ITEMS hip hipblas rocblas)
    # Only its presence: the package itself wants the language HIP, which llama.cpp enables.
    find_file(found_${package} ${package}-config.cmake NO_CACHE
      HINTS ${rocm} PATHS /usr PATH_SUFFIXES lib/cmake/${package} lib64/cmake/${package} lib/x86_64-linux-gnu/cmake/${package})
    if(NOT found_${package})
      list(APPEND lacking ${package})
    endif()
  endforeach()
  if(lacking)
    list(JOIN lacking ", " lacking)
    refuse_backend(hip "AMD's ROCm, 6.1 or newer, lacks ${lacking}; looked at: ${rocm}, /usr. Install and build again:"
      "AMD's packages:  apt install rocm-hip-sdk, after https://rocm.docs.amd.com"
      "Fedora:          dnf install rocm-hip-devel hipblas-devel rocblas-devel"
      "ROCm in another place:  ROCM_PATH=/…/rocm pip install .")
  endif()
endfunction()

function(look_for_sycl)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-fsycl HAVE_SYCL)
  if(NOT HAVE_SYCL)
    refuse_backend(sycl "the compiler ${CMAKE_CXX_COMPILER} knows no SYCL."
      "Install Intel's oneAPI base toolkit, and build with its compilers:"
      ". /opt/intel/oneapi/setvars.sh && CC=icx CXX=icpx pip install .")
  endif()
endfunction()

# llama.cpp's default, the reference BLAS, is slower than its own kernels; on macOS it is Apple's.
macro(choose_blas)
  if(NOT APPLE AND NOT DEFINED GGML_BLAS_VENDOR)
    set(GGML_BLAS_VENDOR OpenBLAS)
  endif()
endmacro()

function(look_for_blas)
  if(APPLE)
    return()
  endif()
  set(BLA_VENDOR ${GGML_BLAS_VENDOR})
  find_package(BLAS QUIET)
  find_package(PkgConfig QUIET)
  if(NOT BLAS_FOUND OR NOT PkgConfig_FOUND)
    refuse_backend(blas "${GGML_BLAS_VENDOR} or pkg-config was not found. Install them and build again:"
      "Debian, Ubuntu:  apt install libopenblas-dev pkg-config"
      "Fedora, RHEL:    dnf install openblas-devel pkgconf-pkg-config"
      "Another BLAS:    -Ccmake.define.GGML_BLAS_VENDOR=…, a name of CMake's BLA_VENDOR")
  endif()
endfunction()

macro(select_backends)
  string(REGEX REPLACE "[, ]+" ";" backends "${PYLLMCANCEL_BACKEND}")
  foreach(backend IN LISTS backends)
    if(NOT backend IN_LIST PYLLMCANCEL_KNOWN_BACKENDS)
      list(JOIN PYLLMCANCEL_KNOWN_BACKENDS ", " known)
      message(FATAL_ERROR
        "PYLLMCANCEL_BACKEND: there is no back end \"${backend}\". Known are ${known}; several are separated by commas.\n"
        "Others of llama.cpp's are chosen by its own names: -Ccmake.define.GGML_OPENCL=ON")
    endif()
  endforeach()
  foreach(backend IN LISTS backends)
    if(backend STREQUAL "blas")
      choose_blas()
    endif()
    cmake_language(CALL look_for_${backend})
    string(TOUPPER ${backend} upper)
    set(GGML_${upper} ON)
  endforeach()
endmacro()
