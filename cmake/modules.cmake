# PYLLMCANCEL_MODULES: llama.cpp's back ends as libraries of their own, in the package's folder backends/, beside two libraries
# that they share with _native: ggml's base and its registry. llama.cpp itself stays a part of _native, as ever.
#
# The shared libraries have names of ours: a process that loads another ggml by its usual name, llama-cpp-python's for
# instance, would otherwise have the loader give one of them to both.

set(MODULES_FOLDER backends)
set(CMAKE_SKIP_RPATH OFF)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(MODULES_ORIGIN $ORIGIN)
if(APPLE)
  set(MODULES_ORIGIN @loader_path)
endif()
set(CMAKE_INSTALL_RPATH ${MODULES_ORIGIN})

# Instead of llama.cpp, which would be shared, too, and then hide what of it we use beyond its API.
macro(add_ggml_as_modules)
  set(GGML_BACKEND_DL ON)
  set(GGML_CPU_ALL_VARIANTS ON)
  # As llama.cpp has it.
  set(GGML_ALL_WARNINGS OFF)
  set(GGML_LLAMAFILE_DEFAULT ON)
  set(GGML_CUDA_GRAPHS_DEFAULT ON)
  set(GGML_BUILD_COMMIT ${LLAMA_BUILD_COMMIT})
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${MODULES_FOLDER})
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set(BUILD_SHARED_LIBS ON)
  add_subdirectory(${LLAMA_CPP_DIR}/ggml ${CMAKE_BINARY_DIR}/llama.cpp/ggml EXCLUDE_FROM_ALL SYSTEM)
  set(BUILD_SHARED_LIBS OFF)
  unset(CMAKE_RUNTIME_OUTPUT_DIRECTORY)
  unset(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
  set_target_properties(ggml-base PROPERTIES OUTPUT_NAME pyllmcancel-ggml-base)
  set_target_properties(ggml PROPERTIES OUTPUT_NAME pyllmcancel-ggml)
  list(FILTER GGML_AVAILABLE_BACKENDS INCLUDE REGEX "^ggml-")
  set(ggml_libraries ggml ggml-base)
  foreach(backend IN LISTS GGML_AVAILABLE_BACKENDS)
    if(TARGET ${backend}) # of an earlier configuration, if not
      list(APPEND ggml_libraries ${backend})
    endif()
  endforeach()
  foreach(target IN LISTS ggml_libraries)
    # A wheel has no symbolic links.
    set_property(TARGET ${target} PROPERTY VERSION)
    set_property(TARGET ${target} PROPERTY SOVERSION)
  endforeach()
endmacro()

# Which of the CPU's back ends is loaded: the system and the environment are asked, too (native/ggml/variant_score.cpp).
function(add_variant_scores)
  get_property(targets DIRECTORY ${LLAMA_CPP_DIR}/ggml/src PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER targets INCLUDE REGEX "^ggml-cpu-.*-feats$")
  foreach(target IN LISTS targets)
    string(REGEX REPLACE "^ggml-cpu-(.*)-feats$" "\\1" variant ${target})
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/ggml/variant_score.cpp)
    target_compile_definitions(${target} PRIVATE PYLLMCANCEL_VARIANT="${variant}")
  endforeach()
  set_source_files_properties(
    ${LLAMA_CPP_DIR}/ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp TARGET_DIRECTORY ggml-base
    PROPERTIES COMPILE_DEFINITIONS ggml_backend_score=ggml_own_backend_score)
endfunction()

function(install_modules module)
  set_target_properties(${module} PROPERTIES INSTALL_RPATH ${MODULES_ORIGIN}/${MODULES_FOLDER})
  install(TARGETS ${ggml_libraries}
    LIBRARY DESTINATION pyllmcancel/${MODULES_FOLDER} COMPONENT pyllmcancel
    RUNTIME DESTINATION pyllmcancel/${MODULES_FOLDER} COMPONENT pyllmcancel)
endfunction()
