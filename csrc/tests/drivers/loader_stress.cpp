// Drives a Loader the way no well-behaved program does, for the thread sanitizer: many threads, a consumer
// and a submitter of their own, failures, and close() while all of them are busy.
//   loader_stress FOLDER FILE...
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/jpeg/loader.h"
#include "stress.h"

namespace hpcai500::drivers {
namespace {

using namespace std::chrono_literals;

constexpr int batch_size = 5, slot_count = 3, thread_count = 4, batches = 40;

struct Bench {
    DecodeSpec spec;
    std::vector<std::vector<std::uint8_t>> memory;
    std::vector<void*> slots;

    Bench() {
        spec.size = 24;
        for (int i = 0; i < slot_count; ++i) memory.emplace_back(batch_size * spec.image_bytes());
        for (auto& slot : memory) slots.push_back(slot.data());
    }
};

PathTable table(const Words& files) {
    PathTable paths;
    for (const std::string& file : files) paths.add(file);
    paths.add("missing");
    return paths;
}

std::vector<std::int64_t> samples_of(int batch, std::size_t files) {
    std::vector<std::int64_t> samples;
    for (int i = 0; i < batch_size; ++i)
        samples.push_back(static_cast<std::int64_t>(static_cast<std::size_t>(batch + i) % (files + 1)));
    return samples;
}

// A submitter and a consumer in two threads; returns the bytes of all batches in order.
std::vector<std::uint8_t> consume_all(const std::string& root, const Words& files, int threads) {
    Bench bench;
    Loader loader(root, table(files), bench.spec, bench.slots, batch_size, threads);
    std::thread submitter([&] {
        for (int batch = 0; batch < batches; ++batch)
            loader.submit(samples_of(batch, files.size()), 7, static_cast<std::uint32_t>(batch));
    });
    std::vector<std::uint8_t> bytes;
    for (int done = 0; done < batches;) {
        if (loader.pending() == 0) {
            std::this_thread::yield();
            continue;
        }
        const auto batch = loader.next(100ms);
        if (!batch) continue;
        // Reads what the workers wrote: the sanitizer sees it if nothing orders the two.
        const auto& slot = bench.memory[static_cast<std::size_t>(batch->slot)];
        bytes.insert(bytes.end(), slot.begin(), slot.end());
        loader.release(batch->slot);
        ++done;
    }
    submitter.join();
    return bytes;
}

void close_while_busy(const std::string& root, const Words& files) {
    for (int round = 0; round < 10; ++round) {
        Bench bench;
        Loader loader(root, table(files), bench.spec, bench.slots, batch_size, thread_count);
        for (int batch = 0; batch < batches; ++batch) loader.submit(samples_of(batch, files.size()), 1, 0);
        std::thread consumer([&] {
            try {
                for (;;)
                    if (const auto batch = loader.next(100ms)) loader.release(batch->slot);
            } catch (const std::runtime_error&) {
                // Closed under it, as it should be told.
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        std::thread second([&] { loader.close(); });
        loader.close();
        second.join();
        consumer.join();
    }
}

}  // namespace

std::string stress_loader(const Words& folder_and_files) {
    const std::string& root = folder_and_files.front();
    const Words files(folder_and_files.begin() + 1, folder_and_files.end());
    if (consume_all(root, files, 1) != consume_all(root, files, thread_count))
        throw std::runtime_error(std::to_string(thread_count) + " threads made other bytes than one");
    close_while_busy(root, files);
    return std::to_string(batches) + " batches, twice the same; closed while busy";
}

}  // namespace hpcai500::drivers
