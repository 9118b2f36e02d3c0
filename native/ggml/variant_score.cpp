// The score of a CPU's back end that is a library of its own (PYLLMCANCEL_MODULES): the best one is loaded, one of 0 never.
// It takes the place of ggml's (cmake/llama_cpp.cmake), and is compiled once for each back end, without its instructions.
//
// ggml asks the processor only. But an instruction faults where the system does not save its registers, as under some
// hypervisors; and which back end is loaded has to be a person's choice, too, to test and to measure each on one machine.

#include <cpuid.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

// ggml's own, renamed. It is 0 for a processor that lacks an instruction.
extern "C" int ggml_own_backend_score(void);

namespace {

// Bits of the register XCR0: the registers that the system saves.
constexpr std::uint64_t SAVES_AVX = 0x6;
constexpr std::uint64_t SAVES_AVX512 = 0xe6;
constexpr std::uint64_t SAVES_TILES = 0x60000;

#if defined(GGML_AMX_TILE)
constexpr std::uint64_t NEEDED = SAVES_AVX512 | SAVES_TILES;
#elif defined(GGML_AVX512)
constexpr std::uint64_t NEEDED = SAVES_AVX512;
#elif defined(GGML_AVX)
constexpr std::uint64_t NEEDED = SAVES_AVX;
#else
constexpr std::uint64_t NEEDED = 0;
#endif

std::uint64_t saved_by_the_system() {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) {
        return 0;
    }
    // Not _xgetbv(): that needs a flag of the compiler, for a file that must have none.
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return static_cast<std::uint64_t>(d) << 32 | a;
}

bool is_wanted() {
    const char * const wanted = std::getenv("PYLLMCANCEL_CPU_VARIANT");
    return wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, PYLLMCANCEL_VARIANT) == 0;
}

} // namespace

extern "C" __attribute__((visibility("default"))) int ggml_backend_score(void) {
    if (!is_wanted() || (saved_by_the_system() & NEEDED) != NEEDED) {
        return 0;
    }
    return ggml_own_backend_score();
}
