// The barrier of SharedSum: ranks wait for each other, and for none that never comes. A template, so that a
// test can run it on words of its own and see every interleaving (csrc/tests/drivers/sums_stress.cpp).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace hpcai500 {

/// What the ranks share. All zeros is how it starts.
///
/// A turn is one meeting of all ranks. A rank arrives at most once a turn, and waits for the turn's end.
/// - `arrived`: how many have arrived in this turn. The last one sets it back to 0, then ends the turn.
/// - `turn`: how many turns have ended. Only the last one that arrives changes it.
/// - `closed`: 0, then 1 for ever: a rank has left, or was found to have ended. Nobody arrives from then on.
///
/// Whoever throws has found or set `closed` and never arrives again, so that its arrival counts in the turn
/// that it has reached and in no later one: a turn ends only when all ranks have reached it. A rank ends a
/// turn before it closes, and closes before its process ends; the others look at these in the reverse order,
/// and so see the end of a turn that has ended, and a close where there was one.
template <class Word>
struct BarrierWords {
    alignas(64) Word arrived;
    alignas(64) Word turn;
    alignas(64) Word closed;
};

/// Waits until all `ranks` have arrived. `others` has `looks` and pause() before the first sleep, sleep(turn)
/// as long as turn is that, for a while, wake(), and is_there(rank). Throws std::runtime_error.
template <class Word, class Others>
void wait_for_all(BarrierWords<Word>& words, int rank, int ranks, Others& others) {
    constexpr const char* left = "another rank has left";
    if (words.closed.load() != 0) throw std::runtime_error(left);
    const std::uint32_t turn = words.turn.load();
    if (words.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) {
        words.arrived.store(0);
        words.turn.store(turn + 1);
        others.wake();
        return;
    }
    const auto has_ended = [&] { return words.turn.load() != turn; };
    for (int look = 0; look < Others::looks; ++look) {
        if (has_ended()) return;
        others.pause();
    }
    for (;;) {
        others.sleep(turn);
        if (has_ended()) return;
        int missing = 0;
        while (missing < ranks && (missing == rank || others.is_there(missing))) ++missing;
        const bool closed = words.closed.load() != 0;
        if (has_ended()) return;
        if (closed) throw std::runtime_error(left);
        if (missing < ranks) {
            words.closed.store(1);
            others.wake();
            throw std::runtime_error("rank " + std::to_string(missing) + " of this host has ended");
        }
    }
}

}  // namespace hpcai500
