// A fuzz target: any bytes as a JPEG file, and seek points of it; true ones first, and then the same damaged.
//
//  - A scan that is whole has points, and a window that is reached by them has the samples that it has
//    without.
//  - With damaged points all kernels come to the same end: a refusal, or samples; and nothing is read
//    outside the data.
#include <algorithm>
#include <optional>
#include <vector>

#include "baseline_kernels.h"
#include "fuzz_input.h"
#include "jpeg_samples.h"

namespace {

using namespace hpcai500;
using baseline::SeekPoints;

// What storage and attackers do to an index whose checksums they make anew.
void damage(std::vector<std::uint8_t>& packed, Choices& choices) {
    const auto size = [&packed] { return static_cast<int>(packed.size()); };
    for (int changes = 1 + choices.below(3); changes > 0 && size() > 0; --changes) {
        const auto at = static_cast<std::size_t>(choices.below(size()));
        switch (choices.below(5)) {
            case 0:
                packed[at] = static_cast<std::uint8_t>(choices.below(256));
                break;
            case 1:
                packed.resize(static_cast<std::size_t>(choices.below(size())));
                break;
            case 2: {
                // One point in another's place.
                const auto points = static_cast<int>((packed.size() - 1) / SeekPoints::point_bytes);
                if (points < 2) break;
                const auto place = [&] {
                    return packed.begin() + SeekPoints::header_bytes +
                           choices.below(points) * static_cast<int>(SeekPoints::point_bytes);
                };
                const auto from = place(), to = place();
                if (packed.end() - std::max(from, to) >= static_cast<std::ptrdiff_t>(SeekPoints::point_bytes))
                    std::swap_ranges(from, from + (from == to ? 0 : SeekPoints::point_bytes), to);
                break;
            }
            default:
                packed[at] ^= static_cast<std::uint8_t>(1U << choices.below(8));
                break;
        }
    }
}

// What becomes of an input.
enum class Kind { no_header, foreign, damaged, unsuited, refused, same, other };
Tally<7>& tally() {
    static Tally<7> made({"without a header", "left to libjpeg", "not whole", "with unsuited points",
                          "refused points", "taken points", "other samples"});
    return made;
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    static RawJpeg header;
    static baseline::Decoder decoder;
    std::optional<baseline::Scan> scan;
    try {
        scan = header.open(data);
    } catch (const DecodeError&) {
        return tally().add(Kind::no_header);
    }
    if (!scan || !decoder.open(*scan) || std::int64_t{scan->width} * scan->height > most_fuzzed_pixels)
        return tally().add(Kind::foreign);
    const ScanShape shape(*scan);
    static const std::vector<const Kernels*> here = kernels_here();
    baseline::use(here.back()->baseline);
    if (take(decoder, *scan, scan->width, scan->height).rows < shape.mcu_rows())
        return tally().add(Kind::damaged);

    Choices choices(digest(data));
    claim(decoder.open(*scan), "tables that were taken are refused");
    const int interval = (1 + choices.below(12)) * std::max(scan->restart_interval, 1);
    std::vector<std::uint8_t> packed = decoder.make_points(interval);
    const SampleWindow window = choose_window(shape, choices);
    const auto plain = take_window(decoder, *scan, {}, window);
    const auto jumped = take_window(decoder, *scan, SeekPoints(packed), window);
    claim(jumped.has_value(), "a scan's own points do not suit it");
    claim(plain == jumped, "a window has other samples when it is reached by points");

    damage(packed, choices);
    // Exactly their room: the sanitizer sees a byte read behind it.
    const std::vector<std::uint8_t> exact(packed.begin(), packed.end());
    std::optional<TakenWindow> first;
    for (const Kernels* kernels : here) {
        baseline::use(kernels->baseline);
        auto taken = take_window(decoder, *scan, SeekPoints(exact), window);
        if (kernels == &portable_kernels)
            first = std::move(taken);
        else
            claim(taken == first, "%s makes something else of damaged points than portable", kernels->isa);
    }
    tally().add(!first           ? Kind::unsuited
                : first->refused ? Kind::refused
                : first == plain ? Kind::same
                                 : Kind::other);
}
