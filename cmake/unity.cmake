# Source files that are compiled together. To a file of llama.cpp or of native/, headers are a second or two, and much of what
# it compiles are templates that its neighbours compile, too. PYLLMCANCEL_UNITY=OFF compiles each file of native/ and of the
# chat layer by itself: a developer who changes one waits for that one. Editable installs do so.

set(unity_default ON)
if(PYLLMCANCEL_SANITIZE OR PYLLMCANCEL_COVERAGE)
  set(unity_default OFF)
endif()
option(PYLLMCANCEL_UNITY "Compile source files together: quicker as a whole, slower after a change" ${unity_default})

# Code that takes a negligible share of an answer's time is optimized less than the kernels, for which -O3 of the build type
# stays.
set(reduces_optimization OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT PYLLMCANCEL_SANITIZE AND NOT PYLLMCANCEL_COVERAGE)
  set(reduces_optimization ON)
endif()

function(optimize_less target level)
  if(reduces_optimization)
    target_compile_options(${target} PRIVATE ${level})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Half a gigabyte before GCC looks what of its memory it no longer needs.
      target_compile_options(${target} PRIVATE --param=ggc-min-heapsize=500000)
    endif()
  endif()
endfunction()

# Joins files of `target`, as the target names them, or else absolute, to one object of that optimization.
function(compile_together target name level)
  # Paths relative to the checkout, by CMake 4: ccache finds objects of another clone.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELATIVE_PATHS ON)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION OFF UNITY_GROUP ${name})
  if(reduces_optimization)
    # The file that CMake writes for the group; files with options of their own would be left out of it.
    get_target_property(folder ${target} BINARY_DIR)
    set_source_files_properties(${folder}/CMakeFiles/${target}.dir/Unity/unity_${name}_cxx.cxx TARGET_DIRECTORY ${target}
      PROPERTIES COMPILE_OPTIONS ${level})
  endif()
endfunction()

# Likewise to `count` objects of as many files each.
function(compile_in_parts target name count level)
  set(number 0)
  foreach(file IN LISTS ARGN)
    math(EXPR part "${number} % ${count}")
    math(EXPR number "${number} + 1")
    list(APPEND part_${part} ${file})
  endforeach()
  math(EXPR last "${count} - 1")
  foreach(part RANGE ${last})
    compile_together(${target} ${name}_${part} ${level} ${part_${part}})
  endforeach()
endfunction()

# Takes files away from a target of llama.cpp.
function(leave_out target)
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${ARGN})
  set_property(TARGET ${target} PROPERTY SOURCES ${sources})
endfunction()
