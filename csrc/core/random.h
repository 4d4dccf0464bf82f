// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011). A counter-based generator has no state to share or to save: what a sample gets depends on its
// key and counter alone, never on the thread, the rank or the order of work.
#pragma once

#include <array>
#include <cstdint>

namespace hpcai500 {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Four random 32-bit words for one counter under one key.
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
    constexpr int rounds = 10;
    constexpr std::uint64_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
    constexpr std::uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t product0 = multiplier0 * counter[0];
        const std::uint64_t product1 = multiplier1 * counter[2];
        counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(product1),
                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(product0)};
        key = {key[0] + weyl0, key[1] + weyl1};
    }
    return counter;
}

// The known answers that the authors publish with their library: a wrong constant does not compile.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) ==
              PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

/// What a sample's random choices depend on.
struct SampleKey {
    std::uint64_t seed = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sample = 0;
};

/// The four words of draw number `block` for one sample.
/// Key: the seed, low word first. Counter: sample low, sample high, epoch, block.
constexpr PhiloxBlock draw(const SampleKey& key, std::uint32_t block) {
    return philox4x32({static_cast<std::uint32_t>(key.sample), static_cast<std::uint32_t>(key.sample >> 32),
                       key.epoch, block},
                      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
}

/// A word as a number in [0, 1): exact in double precision, so that every language gets the same value.
constexpr double unit_interval(std::uint32_t word) {
    return static_cast<double>(word) * 0x1p-32;
}

/// A whole number in [0, bound) from a word, by multiplication: its bias is at most bound / 2^32.
constexpr std::uint32_t below(std::uint32_t word, std::uint32_t bound) {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(word) * bound) >> 32);
}

}  // namespace hpcai500
