// llama.cpp's own Jinja as a process: a line of JSON in, with a template's source and its variables, a line of JSON out.

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

extern "C" void ggml_abort(const char * file, int line, const char * format, ...) { // what its json.cpp calls
    std::va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "%s:%d: ", file, line);
    std::vfprintf(stderr, format, arguments);
    std::abort();
}

namespace {

struct Compiled {
    std::string source;
    jinja::program program;
};

const Compiled & compiled(const std::string & source) {
    static std::map<std::string, Compiled> known;
    const auto found = known.find(source);
    if (found != known.end()) {
        return found->second;
    }
    jinja::lexer lexer;
    const jinja::lexer_result lexed = lexer.tokenize(source);
    return known.emplace(source, Compiled{lexed.source, jinja::parse_from_tokens(lexed)}).first->second;
}

std::string render(const std::string & source, const common_json & variables) {
    const Compiled & one = compiled(source);
    jinja::context context(one.source);
    jinja::global_from_json(context, variables, true);
    jinja::runtime runtime(context);
    return jinja::runtime::gather_string_parts(runtime.execute(one.program))->as_string().str();
}

} // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        const common_json asked = common_json::parse(line);
        common_json answer = common_json::object();
        const auto begin = std::chrono::steady_clock::now();
        try {
            answer["text"] = render(asked.at("source").get<std::string>(),
                                    common_json::parse(asked.at("variables").get<std::string>()));
        } catch (const std::exception & error) {
            answer["error"] = error.what();
        }
        answer["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        std::cout << answer.dump_safe() << std::endl;
    }
}
