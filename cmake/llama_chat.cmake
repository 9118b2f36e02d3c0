# llama.cpp's chat layer: templates, the parsers of answers, and the grammars that constrain them; and how it fits a model
# to the memory of devices (native/devices/fit.cpp). Of its library `common` only the files that these need: no downloads,
# no sub-processes, no thread that writes the log. What they call of the rest, native/chat/chat_support.cpp defines; chat.cpp
# is a part of native/chat/chat_template.cpp.

set(COMMON_DIR ${LLAMA_CPP_DIR}/common)
include(${COMMON_DIR}/parsers/sources.cmake)

add_library(llama_chat STATIC EXCLUDE_FROM_ALL
  ${LLAMA_CHAT_PARSERS_SOURCES}
  ${COMMON_DIR}/chat-auto-parser-generator.cpp
  ${COMMON_DIR}/chat-auto-parser-helpers.cpp
  ${COMMON_DIR}/chat-diff-analyzer.cpp
  ${COMMON_DIR}/chat-peg-parser.cpp
  ${COMMON_DIR}/fit.cpp
  ${COMMON_DIR}/json.cpp
  ${COMMON_DIR}/json-schema.cpp
  ${COMMON_DIR}/json-schema-to-grammar.cpp
  ${COMMON_DIR}/peg-parser.cpp
  ${COMMON_DIR}/trie.cpp
  ${COMMON_DIR}/unicode.cpp
  ${COMMON_DIR}/jinja/string.cpp
  ${COMMON_DIR}/jinja/value.cpp
)
# Of its Jinja only what holds values: native/chat/chat_engine.cpp has templates rendered by another engine, to which this one
# function of values.cpp gives the variables. And the fit would put a log callback into the whole process for a while, with
# its data on its stack, though other engines may log meanwhile. native/devices/fit.cpp defines what does nothing instead.
target_compile_definitions(llama_chat PRIVATE
  global_from_json=pyllmcancel_global_from_json llama_log_set=pyllmcancel_keep_log)
# By its folder too: llama.cpp has another unicode.h.
target_include_directories(llama_chat SYSTEM PUBLIC ${COMMON_DIR} ${LLAMA_CPP_DIR})
target_include_directories(llama_chat SYSTEM PRIVATE ${LLAMA_CPP_DIR}/vendor)
target_link_libraries(llama_chat PUBLIC llama ggml Threads::Threads)
target_compile_options(llama_chat PRIVATE -w)
optimize_less(llama_chat -O1)
if(PYLLMCANCEL_UNITY)
  get_target_property(parser_files llama_chat SOURCES)
  list(FILTER parser_files INCLUDE REGEX "\\.cpp$")
  set(other_files ${parser_files})
  list(FILTER parser_files INCLUDE REGEX "/parsers/")
  # json.cpp has an ordered_json of its own.
  list(REMOVE_ITEM other_files ${parser_files} ${COMMON_DIR}/json.cpp)
  compile_together(llama_chat parsers -O1 ${parser_files})
  compile_together(llama_chat others -O1 ${other_files})
endif()
