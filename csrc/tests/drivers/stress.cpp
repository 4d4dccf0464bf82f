// One program of several names (stress.h): the name that it is called by says what it does.
#include "stress.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

namespace {

using namespace hpcai500::drivers;

struct Program {
    const char *name, *usage;
    std::size_t least_words;
    std::string (*run)(const Words&);
};

constexpr Program programs[] = {
    {"loader_stress", "FOLDER FILE...", 2, stress_loader},
    {"climate_stress", "FILE     (FILE is written)", 1, stress_climate},
    {"compression_stress", "ROUNDS THREADS", 2, stress_buckets},
    {"detection_stress", "ROUNDS THREADS", 2, stress_boxes},
    {"sums_stress", "", 0, stress_sums},
};

int run(const Program& program, const Words& words) {
    if (words.size() < program.least_words) {
        std::fprintf(stderr, "usage: %s %s\n", program.name, program.usage);
        return EXIT_FAILURE;
    }
    try {
        std::printf("%s\n", program.run(words).c_str());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", program.name, error.what());
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

}  // namespace

int main(int count, char** values) {
    const std::string name = std::filesystem::path(values[0]).filename();
    for (const Program& program : programs)
        if (name == program.name) return run(program, Words(values + 1, values + count));
    std::fprintf(stderr, "stress: no program is called %s\n", name.c_str());
    return EXIT_FAILURE;
}
