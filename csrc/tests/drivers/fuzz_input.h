// What fuzz targets share: settings that come from the data, and claims that end the program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace hpcai500 {

using Bytes = std::vector<std::uint8_t>;

/// What a target does with one input; libFuzzer and run_corpus.cpp call it by way of fuzz_target.cpp.
void run_input(std::span<const std::uint8_t> data);

// Settings come from the data, so that corpora are plain files and yet every setting is visited.
inline std::uint64_t digest(std::span<const std::uint8_t> data) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::uint8_t byte : data) hash = (hash ^ byte) * 0x100000001b3;
    return hash;
}

// Numbers of one input, one after the other (SplitMix64).
class Choices {
  public:
    explicit Choices(std::uint64_t seed) : state_(seed) {}

    // 0 to bound - 1.
    int below(int bound) { return static_cast<int>(next() % static_cast<std::uint64_t>(bound)); }

  private:
    std::uint64_t next() {
        std::uint64_t value = state_ += 0x9e3779b97f4a7c15;
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
        value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
        return value ^ (value >> 31);
    }
    std::uint64_t state_;
};

// Ends the program, as a sanitizer does, where something that must hold does not.
template <class... Values>
void claim(bool holds, const char* message, Values... values) {
    if (holds) return;
    std::fputs("claim broken: ", stderr);
    if constexpr (sizeof...(values) == 0) {
        std::fputs(message, stderr);
    } else {
        std::fprintf(stderr, message, values...);
    }
    std::fputc('\n', stderr);
    std::abort();
}

// Says at the program's end what became of its inputs: a target whose inputs all fall at the first hurdle
// tests nothing.
template <std::size_t count>
class Tally {
  public:
    explicit Tally(const char* const (&names)[count]) { std::copy(names, names + count, names_); }
    ~Tally() {
        for (std::size_t i = 0; i < count; ++i)
            std::fprintf(stderr, "%ld %s%s", counts_[i], names_[i], i + 1 < count ? ", " : "\n");
    }
    Tally(const Tally&) = delete;
    Tally& operator=(const Tally&) = delete;

    template <class Name>
    void add(Name name) {
        ++counts_[static_cast<std::size_t>(name)];
    }

  private:
    const char* names_[count];
    long counts_[count] = {};
};

}  // namespace hpcai500
