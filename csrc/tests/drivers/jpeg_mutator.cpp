// Mutations for the fuzz targets of JPEG that leave the rest of the file valid. Bytes that are changed
// anywhere mostly end in libjpeg's header, which is not what is tested: these change the scan's data, or one
// property of the header.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t room,
                                               unsigned seed);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t dqt = 0xDB, dht = 0xC4, sof0 = 0xC0, dri = 0xDD, sos = 0xDA, rst0 = 0xD0, eoi = 0xD9;

struct Segment {
    std::uint8_t marker;
    Bytes payload;
};

struct File {
    std::vector<Segment> header;  // the scan's is the last one
    Bytes scan;
};

class Mutator {
  public:
    explicit Mutator(unsigned seed) : random_(seed) {}

    // False where the file has no header that could be kept.
    bool mutate(Bytes& bytes, std::size_t room) {
        File file;
        if (!split(bytes, file)) return false;
        for (std::size_t changes = 1 + below(3); changes > 0; --changes) change(file);
        join(file, bytes);
        if (bytes.size() > room) bytes.resize(room);
        return true;
    }

  private:
    std::size_t below(std::size_t bound) { return random_() % std::max<std::size_t>(bound, 1); }
    std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }
    std::uint8_t one_of(std::initializer_list<int> values) {
        return static_cast<std::uint8_t>(values.begin()[below(values.size())]);
    }

    static bool split(const Bytes& bytes, File& file) {
        std::size_t at = 2;
        while (at + 4 <= bytes.size() && bytes[at] == 0xFF) {
            const std::size_t length = static_cast<std::size_t>(bytes[at + 2]) << 8 | bytes[at + 3];
            if (length < 2 || at + 2 + length > bytes.size()) return false;
            const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
            file.header.push_back(
                {bytes[at + 1], Bytes(begin + 4, begin + 2 + static_cast<std::ptrdiff_t>(length))});
            at += 2 + length;
            if (file.header.back().marker != sos) continue;
            file.scan.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
            return true;
        }
        return false;
    }

    static void join(const File& file, Bytes& bytes) {
        bytes = {0xFF, 0xD8};
        for (const Segment& segment : file.header) {
            const std::size_t length = segment.payload.size() + 2;
            const std::uint8_t start[] = {0xFF, segment.marker, static_cast<std::uint8_t>(length >> 8),
                                          static_cast<std::uint8_t>(length)};
            bytes.insert(bytes.end(), start, start + sizeof start);
            bytes.insert(bytes.end(), segment.payload.begin(), segment.payload.end());
        }
        bytes.insert(bytes.end(), file.scan.begin(), file.scan.end());
    }

    Segment* find(File& file, std::uint8_t marker) {
        std::vector<Segment*> found;
        for (Segment& segment : file.header)
            if (segment.marker == marker) found.push_back(&segment);
        return found.empty() ? nullptr : found[below(found.size())];
    }

    void change(File& file) {
        constexpr void (Mutator::* changes[])(File&) = {
            &Mutator::change_size,       &Mutator::change_sampling, &Mutator::change_factors,
            &Mutator::change_symbols,    &Mutator::change_code,     &Mutator::change_interval,
            &Mutator::change_components, &Mutator::change_segments, &Mutator::change_restart,
            &Mutator::change_restart,    &Mutator::shorten};
        // Mostly the data.
        const std::size_t which = below(24);
        if (which < std::size(changes))
            (this->*changes[which])(file);
        else
            change_data(file.scan);
    }

    void shorten(File& file) {
        file.scan.resize(below(file.scan.size()));
        if (below(2) == 0) file.scan.insert(file.scan.end(), {0xFF, eoi});
    }

    // Sizes of a few MCUs: what is quick is tried often.
    void change_size(File& file) {
        Segment* frame = find(file, sof0);
        if (frame == nullptr || frame->payload.size() < 6) return;
        const std::size_t place = below(2) == 0 ? 1 : 3;
        frame->payload[place] = 0;
        frame->payload[place + 1] = static_cast<std::uint8_t>(1 + below(72));
    }

    void change_sampling(File& file) {
        Segment* frame = find(file, sof0);
        if (frame == nullptr || frame->payload.size() < 9) return;
        for (std::size_t place = 10; place < frame->payload.size(); place += 3) frame->payload[place] = 0x11;
        frame->payload[7] = one_of({0x11, 0x21, 0x22});
        if (below(8) == 0)
            frame->payload[7 + 3 * below((frame->payload.size() - 6) / 3)] =
                one_of({0x12, 0x41, 0x22, 0x44, 0x00});
    }

    void change_factors(File& file) {
        Segment* table = find(file, dqt);
        if (table == nullptr || table->payload.size() < 65) return;
        const std::uint8_t value = one_of({0, 1, 2, 16, 99, 200, 255});
        if (below(4) == 0) {
            std::fill(table->payload.begin() + 1, table->payload.begin() + 65, value);
        } else {
            table->payload[1 + below(64)] = below(2) == 0 ? value : byte();
        }
    }

    // Another meaning for a code. Most values are any byte's: runs out of the block, values of 15 bits.
    void change_symbols(File& file) {
        Segment* table = find(file, dht);
        if (table == nullptr || table->payload.size() < 18) return;
        const std::size_t symbols = table->payload.size() - 17;
        std::uint8_t& first = table->payload[17 + below(symbols)];
        if (below(2) == 0) {
            std::swap(first, table->payload[17 + below(symbols)]);
        } else {
            first =
                below(2) == 0 ? byte() : one_of({0x00, 0xF0, 0x01, 0x0F, 0x1F, 0xF1, 0xFF, 0x0B, 0x10, 0xE0});
        }
    }

    // Codes of other lengths, complete as far as the symbols reach: a valid code that no encoder has.
    void change_code(File& file) {
        Segment* table = find(file, dht);
        if (table == nullptr || table->payload.size() < 18) return;
        std::size_t left = table->payload.size() - 17;
        std::size_t free = 2;
        for (std::size_t length = 1; length <= 16; ++length, free *= 2) {
            // One is left for longer codes: no code is all ones.
            const std::size_t most = std::min<std::size_t>({left, free - 1, 255});
            const std::size_t count = length == 16                 ? most
                                      : most == 0 || below(3) == 0 ? 0
                                                                   : below(most + 1) / (1 + below(4));
            table->payload[length] = static_cast<std::uint8_t>(count);
            left -= count;
            free -= count;
        }
        table->payload.resize(table->payload.size() - left);
    }

    void change_interval(File& file) {
        Segment* interval = find(file, dri);
        if (interval == nullptr) {
            file.header.insert(file.header.end() - 1, Segment{dri, {0, 0}});
            interval = &file.header[file.header.size() - 2];
        }
        interval->payload = {0, static_cast<std::uint8_t>(below(10))};
    }

    void change_components(File& file) {
        Segment* frame = find(file, sof0);
        Segment* scan = find(file, sos);
        if (frame == nullptr || frame->payload.size() < 9 || scan == nullptr || scan->payload.size() < 6)
            return;
        const std::size_t count = below(2) == 0 ? 1 : 3;
        frame->payload.resize(6 + 3 * count, frame->payload[8]);
        frame->payload[5] = static_cast<std::uint8_t>(count);
        Bytes header{static_cast<std::uint8_t>(count)};
        for (std::size_t component = 0; component < count; ++component) {
            if (component > 0) frame->payload[7 + 3 * component] = 0x11;
            frame->payload[6 + 3 * component] = static_cast<std::uint8_t>(component + 1);
            header.insert(header.end(),
                          {static_cast<std::uint8_t>(component + 1), one_of({0x00, 0x11, 0x10, 0x00})});
        }
        header.insert(header.end(), {0, 63, 0});
        scan->payload = header;
    }

    void change_segments(File& file) {
        if (below(4) != 0) return change_data(file.scan);
        const std::size_t place = below(file.header.size());
        const auto at = file.header.begin() + static_cast<std::ptrdiff_t>(place);
        if (below(2) == 0 && at->marker != sos) {
            file.header.erase(at);
            return;
        }
        Bytes& payload = at->payload;
        if (!payload.empty()) payload[below(payload.size())] = byte();
    }

    void change_restart(File& file) {
        Bytes& scan = file.scan;
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i + 1 < scan.size(); ++i)
            if (scan[i] == 0xFF && scan[i + 1] >= rst0 && scan[i + 1] < rst0 + 8) found.push_back(i);
        const auto place =
            static_cast<std::ptrdiff_t>(found.empty() ? below(scan.size()) : found[below(found.size())]);
        const auto at = scan.begin() + place;
        const auto marker = static_cast<std::uint8_t>(rst0 + below(8));
        if (found.empty() || below(4) == 0) {
            scan.insert(at, {0xFF, marker});
        } else if (below(3) == 0) {
            scan.erase(at, at + 2);
        } else if (below(2) == 0) {
            *(at + 1) = marker;
        } else {
            scan.insert(at, below(2) == 0 ? 0xFF : byte());
        }
    }

    // The data between two markers, mostly stuffed again, so that more of it is read.
    void change_data(Bytes& scan) {
        if (scan.empty()) return;
        if (below(3) == 0) {
            scan[std::max(below(scan.size()), below(scan.size()))] ^=
                static_cast<std::uint8_t>(1U << below(8));
            return;
        }
        // What is damaged early leaves little to compare.
        const std::size_t from = std::max(below(scan.size()), below(scan.size()));
        const std::size_t length = std::min(1 + below(below(2) == 0 ? 8 : 256), scan.size() - from);
        Bytes part(scan.begin() + static_cast<std::ptrdiff_t>(from),
                   scan.begin() + static_cast<std::ptrdiff_t>(from + length));
        part.resize(length + 64);
        part.resize(LLVMFuzzerMutate(part.data(), length, part.size()));
        if (below(4) != 0) stuff(part);
        scan.erase(scan.begin() + static_cast<std::ptrdiff_t>(from),
                   scan.begin() + static_cast<std::ptrdiff_t>(from + length));
        scan.insert(scan.begin() + static_cast<std::ptrdiff_t>(from), part.begin(), part.end());
    }

    static void stuff(Bytes& part) {
        Bytes stuffed;
        for (std::size_t i = 0; i < part.size(); ++i) {
            stuffed.push_back(part[i]);
            const bool marker = i + 1 < part.size() && (part[i + 1] == 0 || (part[i + 1] & 0xF8) == rst0);
            if (part[i] == 0xFF && !marker) stuffed.push_back(0);
        }
        part = stuffed;
    }

    std::mt19937 random_;
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t room,
                                               unsigned seed) {
    Bytes bytes(data, data + size);
    if (seed % 32 == 0 || !Mutator(seed).mutate(bytes, room)) return LLVMFuzzerMutate(data, size, room);
    if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
    return bytes.size();
}
