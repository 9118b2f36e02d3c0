# Which files of llama.cpp are compiled together. An object takes 1.1 GiB of memory at most, and none is so long that a second
# processor waits for it at the end. Files that use std::regex are together: its templates take longer than the files.

# The C++ files of a target in a folder of llama.cpp, absolute.
function(cpp_files_of target folder)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM sources PREPEND ${LLAMA_CPP_DIR}/${folder}/ REGEX "^[^/]")
  set(${target}_files ${sources} PARENT_SCOPE)
endfunction()

cpp_files_of(llama src)
set(loading_files ${llama_files})
set(token_files ${llama_files})
set(model_files ${llama_files})
list(FILTER loading_files INCLUDE REGEX "/llama-(adapter|arch|chat|grammar|hparams|impl|mmap|model|model-loader|model-saver)\\.cpp$")
list(FILTER token_files INCLUDE REGEX "/(llama-sampler|llama-vocab|unicode|unicode-data)\\.cpp$")
list(FILTER model_files INCLUDE REGEX "/models/")
# Two files have a function dsv4_plan_positions.
set(graph_files ${llama_files})
list(FILTER graph_files INCLUDE REGEX "/llama-(batch|context|graph)\\.cpp$")
set(step_files ${llama_files})
list(REMOVE_ITEM step_files ${loading_files} ${token_files} ${model_files} ${graph_files})
compile_together(llama loading -O1 ${loading_files})
compile_together(llama tokens -O2 ${token_files})
compile_together(llama graphs -O1 ${graph_files})
compile_together(llama steps -O1 ${step_files})
compile_in_parts(llama models 3 -O1 ${model_files})
optimize_less(llama -O2)

cpp_files_of(mtmd tools/mtmd)
set(decoding_files ${mtmd_files})
list(FILTER decoding_files INCLUDE REGEX "/mtmd[^/]*\\.cpp$")
list(REMOVE_ITEM mtmd_files ${decoding_files})
compile_together(mtmd files -O2 ${decoding_files})
compile_in_parts(mtmd models 2 -O1 ${mtmd_files})
optimize_less(mtmd -O2)

# Of ggml's base, what reads files, and what divides a model between devices.
if(reduces_optimization)
  set_source_files_properties(${LLAMA_CPP_DIR}/ggml/src/gguf.cpp ${LLAMA_CPP_DIR}/ggml/src/ggml-backend-meta.cpp
    TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS -O1)
endif()
