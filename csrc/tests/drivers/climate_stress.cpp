// Drives a ClimateReader the way no well-behaved program does, for the thread sanitizer: many threads that
// read, take and fail at the same time, and close() while all of them are busy.
//   climate_stress FILE     (FILE is written)
#include <libdeflate.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/climate/climate_reader.h"
#include "stress.h"

namespace hpcai500::drivers {
namespace {

constexpr Extents shape{12, 3, 16, 40}, chunk{4, 1, 8, 20};
constexpr std::int64_t damaged_image = 11;

bool never() {
    return false;
}

struct Free {
    void operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }
};

// Chunks of some pattern, deflated; the very last one is damaged.
ClimateFile write_year(const std::string& path) {
    ClimateFile file{path, shape, 0, chunk, {Filter::deflate}, {}, {}, {}};
    const std::unique_ptr<libdeflate_compressor, Free> compressor(libdeflate_alloc_compressor(1));
    std::ofstream stream(path, std::ios::binary);
    std::uint64_t address = 0;
    constexpr std::size_t cells = 3 * 3 * 2 * 2;
    for (std::size_t cell = 0; cell < cells; ++cell) {
        std::vector<float> values(4 * 8 * 20);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(cell * 1000 + i);
        std::vector<char> deflated(8192);
        const std::size_t size = libdeflate_zlib_compress(compressor.get(), values.data(), values.size() * 4,
                                                          deflated.data(), deflated.size());
        if (cell + 1 == cells) std::memset(deflated.data() + size / 2, 0xff, 8);
        stream.write(deflated.data(), static_cast<std::streamsize>(size));
        file.addresses.push_back(address);
        file.sizes.push_back(size);
        file.masks.push_back(0);
        address += size;
    }
    if (!stream.flush()) throw std::runtime_error("cannot write " + path);
    return file;
}

ClimateSpec spec_of(int threads) {
    return {{2, 0}, {1, 2}, {3, 4}, DType::float16, 5, 30, threads};
}

std::vector<std::uint8_t> images_of(const ClimateReader& reader, std::int64_t images, std::int64_t columns) {
    return std::vector<std::uint8_t>(
        static_cast<std::size_t>(images * reader.channels() * reader.rows() * columns) * reader.item_bytes());
}

// One thread's work: reads images, reads a window and takes them from it, and compares; now and then it
// fails.
void use(ClimateReader& reader, std::int64_t number) {
    for (std::int64_t round = 0; round < 20; ++round) {
        const std::int64_t roll = (number * 7 + round) % shape[3], first = 4 * (round % 2);
        std::vector<ImageRequest> straight, from_window;
        for (std::int64_t i = 0; i < 3; ++i) {
            straight.push_back({0, first + i, 2 - i, roll});
            from_window.push_back({0, i, 2 - i, roll});
        }
        auto direct = images_of(reader, 3, reader.width()), taken = direct;
        auto window = images_of(reader, 4, reader.columns());
        if (reader.read(straight, 3, direct.data(), never) == JobEnd::closed) return;
        for (std::size_t part = 0; part < 3; ++part)
            if (reader.read_window(0, first, 4, {part, part + 1, 3}, window.data(), never) == JobEnd::closed)
                return;
        if (reader.take(window.data(), 4, from_window, 3, taken.data(), never) == JobEnd::closed) return;
        if (direct != taken) throw std::runtime_error("a window has other bytes than its images");
        try {
            auto one = images_of(reader, 1, reader.width());
            if (reader.read({{0, damaged_image, 0, 0}}, 1, one.data(), never) == JobEnd::closed) return;
            throw std::runtime_error("damage was not seen");
        } catch (const ClimateError& error) {
            if (error.place().channel != 2) throw;
        }
    }
}

void use_from_many_threads(ClimateReader& reader, bool close) {
    std::vector<std::thread> users;
    std::atomic<bool> failed{false};
    for (std::int64_t number = 0; number < 3; ++number)
        users.emplace_back([&reader, &failed, number] {
            try {
                use(reader, number);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "climate_stress: %s\n", error.what());
                failed = true;
            }
        });
    if (close) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        std::thread second([&reader] { reader.close(); });
        reader.close();
        second.join();
    }
    for (std::thread& user : users) user.join();
    if (failed) throw std::runtime_error("a user failed");
}

std::vector<std::uint8_t> read_most(const ClimateFile& file, int threads) {
    ClimateReader reader({file}, spec_of(threads));
    std::vector<ImageRequest> requests;
    for (std::int64_t image = 0; image < 8; ++image) requests.push_back({0, image, image, image});
    auto out = images_of(reader, 8, reader.width());
    if (reader.read(requests, 8, out.data(), never) != JobEnd::done) throw std::runtime_error("not done");
    return out;
}

}  // namespace

std::string stress_climate(const Words& words) {
    const ClimateFile file = write_year(words.front());
    if (read_most(file, 1) != read_most(file, 4))
        throw std::runtime_error("4 threads made other bytes than one");
    ClimateReader reader({file}, spec_of(4));
    use_from_many_threads(reader, false);
    for (int round = 0; round < 10; ++round) {
        ClimateReader closed({file}, spec_of(3));
        use_from_many_threads(closed, true);
    }
    return "windows equal images; closed while busy";
}

}  // namespace hpcai500::drivers
