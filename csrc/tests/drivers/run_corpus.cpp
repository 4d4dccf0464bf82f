// Runs the fuzz target that it is linked with over corpora, without a fuzzer:
//   NAME_corpus FOLDER...            every file below the folders
//   NAME_corpus --truncate FILE...   every prefix of the files
//   NAME_corpus --flip FILE...       the files with each of their bits flipped, one at a time
//   NAME_corpus --mutate N FOLDER... every file with N seeded mutations each; every second one by the
//   target's own
//                                    mutator, where it has one (jpeg_mutator.cpp)
// Prints the number of inputs. A defect ends it, by a sanitizer or by abort().
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Of a target that has one; it calls the other, which is libFuzzer's where that runs the target.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                                                     std::size_t room, unsigned seed);
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room);

namespace {

using Bytes = std::vector<std::uint8_t>;

long inputs = 0;

void run(const Bytes& bytes) {
    // A copy of exactly the input's size: the sanitizer sees a byte read behind it.
    const Bytes exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    ++inputs;
}

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

// Sorted, so that the same corpus gives the same mutations everywhere.
std::vector<std::filesystem::path> files_of(const std::vector<std::string>& places) {
    std::vector<std::filesystem::path> files;
    for (const std::string& place : places) {
        if (!std::filesystem::is_directory(place)) {
            files.emplace_back(place);
            continue;
        }
        for (const auto& entry : std::filesystem::recursive_directory_iterator(place))
            if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

// What storage and attackers do: flip bits, overwrite with markers, remove, repeat, splice.
void mutate(Bytes& bytes, const Bytes& other, std::mt19937_64& random) {
    const auto below = [&](std::size_t bound) {
        return static_cast<std::size_t>(random() % std::max<std::size_t>(bound, 1));
    };
    const std::size_t changes = 1 + below(4);
    for (std::size_t change = 0; change < changes && !bytes.empty(); ++change) {
        const std::size_t at = below(bytes.size());
        const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        const auto length = static_cast<std::ptrdiff_t>(std::min(1 + below(32), bytes.size() - at));
        switch (below(6)) {
            case 0:
                bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
                break;
            case 1:
                bytes[at] = static_cast<std::uint8_t>(random());
                break;
            case 2:
                bytes[at] = 0xFF;
                if (at + 1 < bytes.size()) bytes[at + 1] = static_cast<std::uint8_t>(0xC0 + below(0x40));
                break;
            case 3:
                bytes.erase(place, place + length);
                break;
            case 4: {
                const Bytes repeated(place, place + length);
                bytes.insert(place, repeated.begin(), repeated.end());
                break;
            }
            default: {
                const std::size_t from = below(other.size());
                bytes.erase(place, bytes.end());
                bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
                break;
            }
        }
    }
}

void mutate_by_target(Bytes& bytes, std::mt19937_64& random) {
    constexpr std::size_t growth = 4096;
    const std::size_t size = bytes.size();
    bytes.resize(size + growth);
    bytes.resize(LLVMFuzzerCustomMutator(bytes.data(), size, bytes.size(), static_cast<unsigned>(random())));
}

void run_all(const std::vector<std::string>& places) {
    for (const auto& path : files_of(places)) run(read_file(path));
}

void run_prefixes(const std::vector<std::string>& places) {
    for (const auto& path : files_of(places)) {
        const Bytes whole = read_file(path);
        for (std::size_t length = 0; length <= whole.size(); ++length)
            run(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    }
}

void run_flips(const std::vector<std::string>& places) {
    for (const auto& path : files_of(places)) {
        Bytes bytes = read_file(path);
        for (std::uint8_t& byte : bytes) {
            for (unsigned bit = 1; bit < 256; bit <<= 1) {
                byte ^= static_cast<std::uint8_t>(bit);
                run(bytes);
                byte ^= static_cast<std::uint8_t>(bit);
            }
        }
    }
}

void run_mutations(long count, const std::vector<std::string>& places) {
    std::mt19937_64 random(500);
    std::vector<Bytes> corpus;
    for (const auto& path : files_of(places)) corpus.push_back(read_file(path));
    for (const Bytes& original : corpus) {
        for (long i = 0; i < count; ++i) {
            Bytes bytes = original;
            if (LLVMFuzzerCustomMutator != nullptr && i % 2 == 1) {
                mutate_by_target(bytes, random);
            } else {
                mutate(bytes, corpus[random() % corpus.size()], random);
            }
            run(bytes);
        }
    }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room) {
    static std::mt19937_64 random(500);
    Bytes bytes(data, data + size);
    mutate(bytes, Bytes(bytes), random);
    bytes.resize(std::min(bytes.size(), room));
    std::copy(bytes.begin(), bytes.end(), data);
    return bytes.size();
}

int main(int count, char** values) {
    std::vector<std::string> places(values + 1, values + count);
    const std::string mode = places.empty() ? "" : places.front();
    try {
        if (mode == "--truncate") {
            places.erase(places.begin());
            run_prefixes(places);
        } else if (mode == "--flip") {
            places.erase(places.begin());
            run_flips(places);
        } else if (mode == "--mutate" && places.size() > 1) {
            const long mutations = std::stol(places[1]);
            places.erase(places.begin(), places.begin() + 2);
            run_mutations(mutations, places);
        } else {
            run_all(places);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", values[0], error.what());
        return EXIT_FAILURE;
    }
    std::printf("%ld inputs\n", inputs);
    // A corpus that was not found must not look like one that passed.
    return inputs > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
