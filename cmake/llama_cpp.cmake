# llama.cpp from vendor/llama.cpp: filled from the pin when the tree is missing, linked statically, nothing installed.

set(LLAMA_CPP_DIR ${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp)

if(PYLLMCANCEL_FETCH)
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/fill_vendor.py
    RESULT_VARIABLE fill_result ERROR_VARIABLE fill_error)
  if(NOT fill_result EQUAL 0)
    message(FATAL_ERROR "vendor/llama.cpp could not be filled.\n${fill_error}")
  endif()
elseif(NOT EXISTS ${LLAMA_CPP_DIR}/include/llama.h)
  message(FATAL_ERROR "vendor/llama.cpp is empty and PYLLMCANCEL_FETCH is off: run `python tools/fill_vendor.py`.")
endif()

# llama.cpp would ask git for the commit of the *enclosing* repository; the pin knows better.
file(STRINGS ${LLAMA_CPP_DIR}/PIN.toml pin_commit REGEX "^commit = ")
string(REGEX REPLACE "^commit = \"(.*)\"$" "\\1" pin_commit "${pin_commit}")
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT ${pin_commit})
set(GIT_EXE OFF CACHE STRING "ggml's git; off, since the commit comes from the pin" FORCE)

set(BUILD_SHARED_LIBS OFF)
set(LLAMA_BUILD_COMMON ${PYLLMCANCEL_LLAMA_TOOLS})
set(LLAMA_BUILD_TOOLS ${PYLLMCANCEL_LLAMA_TOOLS})
set(LLAMA_BUILD_SERVER ${PYLLMCANCEL_LLAMA_TOOLS})
set(LLAMA_BUILD_TESTS ${PYLLMCANCEL_LLAMA_TOOLS})
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP OFF)
# Pictures and sounds: its library. Videos would need ffmpeg's programs.
set(LLAMA_BUILD_MTMD ON)
set(MTMD_VIDEO OFF CACHE BOOL "Videos, which llama.cpp reads through ffmpeg's programs" FORCE)
set(LLAMA_OPENSSL OFF)
set(LLAMA_USE_PREBUILT_UI OFF)
# Another project's warnings: 15,000 lines of them would bury the one line that matters when a build fails.
set(LLAMA_ALL_WARNINGS OFF)
# ggml's own thread pool: one that we attach and pause, and no libgomp for the wheel to carry.
set(GGML_OPENMP OFF)
set(GGML_CCACHE OFF)
if(PYLLMCANCEL_MODULES)
  set(GGML_NATIVE OFF) # each module has flags of its own
elseif(PYLLMCANCEL_PORTABLE)
  set(GGML_NATIVE OFF)
  # Said outright: in a build directory that has been configured otherwise, ggml's cached options would say otherwise.
  set(has_avx2 ON)
  if(PYLLMCANCEL_PORTABLE STREQUAL "x86-64-v2")
    set(has_avx2 OFF)
  endif()
  set(GGML_SSE42 ON)
  foreach(feature IN ITEMS AVX AVX2 BMI2 F16C FMA)
    set(GGML_${feature} ${has_avx2})
  endforeach()
else()
  set(GGML_NATIVE ON)
endif()
select_backends()

# A failed assertion is thrown while a model loads (native/platform/assertions.hpp), through ggml's C code, too.
add_compile_options($<$<COMPILE_LANGUAGE:C>:-fexceptions>)
if(PYLLMCANCEL_MODULES)
  add_ggml_as_modules()
endif()
add_subdirectory(${LLAMA_CPP_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL SYSTEM)
if(NOT PYLLMCANCEL_LLAMA_TOOLS)
  # Nothing calls these: changing the type of a model's weights, decoders of files (native/media has its own), speech.
  leave_out(llama llama-quant.cpp)
  leave_out(mtmd mtmd-helper.cpp mtmd-helper-gen.cpp)
  include(cmake/llama_unity.cmake)
endif()
if(PYLLMCANCEL_MODULES AND UNIX AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|i686)$")
  add_variant_scores()
endif()

# On processors with AMX (Sapphire Rapids and later), built by GCC: see the header.
# ggml's base is made in the folder in which the CPU's back ends are.
set_source_files_properties(
  ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp TARGET_DIRECTORY ggml-base
  PROPERTIES COMPILE_OPTIONS "-include;${CMAKE_CURRENT_SOURCE_DIR}/native/platform/amx_tile_config.hpp")

# What of llama.cpp is ours on the CPU. Not where its programs are built to compare with, unless it is asked for.
if(NOT DEFINED PYLLMCANCEL_OWN_KERNELS)
  set(PYLLMCANCEL_OWN_KERNELS ON)
  if(PYLLMCANCEL_LLAMA_TOOLS)
    set(PYLLMCANCEL_OWN_KERNELS OFF)
  endif()
endif()
# Flash attention whose sums do not depend on the company. ggml's own has another name, for what ours does not compute.
if(PYLLMCANCEL_OWN_KERNELS)
  set_source_files_properties(
    ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/ops.cpp TARGET_DIRECTORY ggml-base
    PROPERTIES COMPILE_DEFINITIONS ggml_compute_forward_flash_attn_ext=ggml_own_flash_attn_ext)
  get_property(ggml_targets DIRECTORY ${LLAMA_CPP_DIR}/ggml/src PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER ggml_targets INCLUDE REGEX "^ggml-cpu")
  list(FILTER ggml_targets EXCLUDE REGEX "-feats$")
  foreach(target IN LISTS ggml_targets)
    foreach(file IN ITEMS attention leaving one_row panel_buffer panel_product)
      target_sources(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/ggml/${file}.cpp)
    endforeach()
  endforeach()
  foreach(file IN ITEMS attention leaving panel_buffer panel_product)
    set_source_files_properties(
      ${CMAKE_CURRENT_SOURCE_DIR}/native/ggml/${file}.cpp TARGET_DIRECTORY ggml-base
      PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/native)
  endforeach()
  # Quantized weights as panels, in the place of those that ggml repacks.
  set_source_files_properties(
    ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/ggml-cpu.cpp TARGET_DIRECTORY ggml-base
    PROPERTIES COMPILE_DEFINITIONS ggml_backend_cpu_repack_buffer_type=pyllmcancel_repack_buffer_type)
  # Without its assertions: they refuse two rows that lie at the same place (native/ggml/one_row.cpp).
  set_source_files_properties(
    ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/llamafile/sgemm.cpp TARGET_DIRECTORY ggml-base
    PROPERTIES COMPILE_DEFINITIONS "llamafile_sgemm=ggml_own_sgemm;NDEBUG")
  if(PYLLMCANCEL_SANITIZE) # its -UNDEBUG comes after the definitions
    set_source_files_properties(
      ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/llamafile/sgemm.cpp TARGET_DIRECTORY ggml-base
      PROPERTIES COMPILE_OPTIONS -DNDEBUG)
  endif()
  # Cells that take memory when they are first written.
  target_sources(llama PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/ggml/cell_pages.cpp)
  set_source_files_properties(
    ${LLAMA_CPP_DIR}/src/llama-kv-cache.cpp TARGET_DIRECTORY llama
    PROPERTIES COMPILE_DEFINITIONS ggml_backend_buffer_clear=pyllmcancel_clear_cells)
endif()
