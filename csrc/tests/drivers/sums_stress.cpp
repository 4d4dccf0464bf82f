// SharedSum's barrier, the code itself, in every interleaving of three ranks:
//   sums_stress
// A rank's wait is run alone, from its begin, with what its touches of shared memory have given so far, until
// it wants one more: what it does next is a function of these. From each state of the memory and the ranks,
// each rank in turn does its next touch, which gives the next states. Fails where a sum lacks something,
// where a rank throws without a reason or goes on after it has thrown, and where a rank can wait for ever.
// Prints the number of states.
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/gradients/barrier.h"
#include "stress.h"

namespace hpcai500::drivers {
namespace {

constexpr int ranks = 3;

// Words of shared memory by number: those of the barrier, each rank's values and its share of the sums, and
// whether its process is there. Values and sums are the number of the call that they are of.
enum : int { arrived, turn, closed, values, sums = values + ranks, present = sums + ranks };
constexpr int words = present + ranks;
constexpr std::uint8_t torn = 99;  // what is being written, and a sum with something wrong in it

struct Touch {
    enum Kind { load, store, add, sleep } kind;
    int word;
    std::uint8_t value;
};

// What the touches of a wait have given. The next one is thrown: what it gives is not known yet.
struct History {
    std::vector<std::uint8_t> results;
    std::size_t read = 0;

    std::uint8_t touch(const Touch& touch) {
        if (read == results.size()) throw touch;
        return results[read++];
    }
};

struct ModelWord {
    History* history;
    int word;

    std::uint32_t load() const { return history->touch({Touch::load, word, 0}); }
    void store(std::uint32_t value) const {
        history->touch({Touch::store, word, static_cast<std::uint8_t>(value)});
    }
    std::uint32_t fetch_add(std::uint32_t value) const {
        return history->touch({Touch::add, word, static_cast<std::uint8_t>(value)});
    }
};

struct Others {
    // The first sleep may end at once, too.
    static constexpr int looks = 0;
    History* history;
    bool has_slept = false;
    std::size_t asleep = 0;

    void pause() {}
    void wake() {}
    // A round after a sleep knows nothing of the rounds before.
    void sleep(std::uint32_t) {
        if (has_slept && history->read == history->results.size())
            history->results.resize(history->read = asleep);
        has_slept = true;
        asleep = history->read;
        history->touch({Touch::sleep, turn, 0});
    }
    bool is_there(int rank) { return history->touch({Touch::load, present + rank, 0}) != 0; }
};

// What the ranks do: each calls until it has made its calls, also after one has thrown, then closes and ends.
struct Story {
    const char* name;
    std::array<int, ranks> calls;
    bool dies = false;       // the last rank's process may end at any time
    bool is_closed = false;  // another thread of the last rank may close at any time
    bool orderly = false;    // nobody may throw
};

// A sum is: begin to write one's values, end it, wait, add up one's share, end it, wait, read all shares.
enum : int { begin_write, end_write, first_wait, begin_add, end_add, second_wait, read, steps };

struct Rank {
    int call = 1, step = begin_write;  // after the last call it closes, then ends
    bool has_thrown = false;
    std::uint8_t sum = 0;
    std::vector<std::uint8_t> results = {};  // of the wait that it is in
};

struct State {
    std::array<std::uint8_t, words> memory{};
    std::array<Rank, ranks> rank{};
    bool may_die = false, may_close = false, has_died = false;

    std::string key() const {
        std::string key(memory.begin(), memory.end());
        key += static_cast<char>(may_die + 2 * may_close + 4 * has_died);
        for (const Rank& one : rank) {
            key += static_cast<char>(one.call * 2 + one.has_thrown);
            key += static_cast<char>(one.step);
            key += static_cast<char>(one.sum);
            key += static_cast<char>(one.results.size());
            key.append(one.results.begin(), one.results.end());
        }
        return key;
    }
};

[[noreturn]] void refuse(const Story& story, const std::string& what) {
    throw std::runtime_error(std::string(story.name) + ": " + what);
}

bool has_ended(const State& state, int rank) {
    return state.memory[static_cast<std::size_t>(present + rank)] == 0;
}

// Whether a word of each rank is of this call.
bool are_all_of(int call, const State& state, int first) {
    const auto begin = state.memory.begin() + first;
    return std::all_of(begin, begin + ranks, [call](std::uint8_t word) { return word == call; });
}

// The touch that a rank wants next in its wait; nothing where the wait has ended, or thrown.
std::optional<Touch> next_in_wait(const Story& story, State& state, int rank) {
    Rank& own = state.rank[static_cast<std::size_t>(rank)];
    History history{own.results};
    BarrierWords<ModelWord> barrier{{&history, arrived}, {&history, turn}, {&history, closed}};
    Others others{&history};
    try {
        wait_for_all(barrier, rank, ranks, others);
        ++own.step;
    } catch (const Touch& touch) {
        own.results = history.results;
        return touch;
    } catch (const std::runtime_error& error) {
        const std::string reason = error.what();
        if (story.orderly) refuse(story, "nobody has left, and yet: " + reason);
        if (!state.has_died && reason != "another rank has left") refuse(story, reason);
        own.has_thrown = true;
        own.step = steps;
    }
    if (own.has_thrown && own.step != steps) refuse(story, "a rank goes on after it has thrown");
    own.results.clear();
    return std::nullopt;
}

std::uint8_t apply(const Touch& touch, State& state) {
    std::uint8_t& word = state.memory[static_cast<std::size_t>(touch.word)];
    const std::uint8_t before = word;
    if (touch.kind == Touch::store) word = touch.value;
    if (touch.kind == Touch::add) word = static_cast<std::uint8_t>(word + touch.value);
    return touch.kind == Touch::load || touch.kind == Touch::add ? before : 0;
}

// One touch of shared memory, and what follows from it without another.
void go_on(const Story& story, State& state, int rank) {
    Rank& own = state.rank[static_cast<std::size_t>(rank)];
    const auto call = static_cast<std::uint8_t>(own.call);
    if (own.call > story.calls[static_cast<std::size_t>(rank)]) {
        apply(own.step++ == 0 ? Touch{Touch::store, closed, 1} : Touch{Touch::store, present + rank, 0},
              state);
        return;
    }
    switch (own.step) {
        case begin_write:
        case end_write:
            apply({Touch::store, values + rank, own.step == begin_write ? torn : call}, state);
            ++own.step;
            break;
        case begin_add:
            own.sum = are_all_of(call, state, values) ? call : torn;
            apply({Touch::store, sums + rank, torn}, state);
            ++own.step;
            break;
        case end_add:
            apply({Touch::store, sums + rank, own.sum}, state);
            own.sum = 0;
            ++own.step;
            break;
        case read:
            if (!are_all_of(call, state, sums)) refuse(story, "a sum lacks something");
            ++own.step;
            break;
        default:
            own.results.push_back(apply(*next_in_wait(story, state, rank), state));
            next_in_wait(story, state, rank);
    }
    if (own.step == steps) {
        own.step = begin_write;
        ++own.call;
    }
}

std::vector<State> after(const Story& story, const State& state) {
    std::vector<State> result;
    for (int rank = 0; rank < ranks; ++rank) {
        if (has_ended(state, rank)) continue;
        State next = state;
        go_on(story, next, rank);
        result.push_back(std::move(next));
    }
    const bool is_there = !has_ended(state, ranks - 1);
    if (state.may_die && is_there) {
        State next = state;
        next.memory[present + ranks - 1] = 0;
        next.rank[ranks - 1] = {};
        next.may_die = next.may_close = false;
        next.has_died = true;
        result.push_back(std::move(next));
    }
    if (state.may_close && is_there) {
        State next = state;
        next.memory[closed] = 1;
        next.may_close = false;
        result.push_back(std::move(next));
    }
    return result;
}

// All states that can follow one another, and that from each of them all ranks can end. Returns their number.
std::size_t explore(const Story& story) {
    std::unordered_map<std::string, std::size_t> known;
    std::vector<std::vector<std::size_t>> before;
    std::deque<std::pair<std::size_t, State>> open;
    std::vector<std::size_t> can_end;
    const auto reach = [&](const State& state, std::optional<std::size_t> from) {
        const auto [place, is_new] = known.try_emplace(state.key(), known.size());
        if (is_new) {
            before.emplace_back();
            open.emplace_back(place->second, state);
        }
        if (from) before[place->second].push_back(*from);
    };
    State first;
    for (int rank = 0; rank < ranks; ++rank) first.memory[static_cast<std::size_t>(present + rank)] = 1;
    first.may_die = story.dies;
    first.may_close = story.is_closed;
    reach(first, std::nullopt);
    while (!open.empty()) {
        const auto [number, state] = std::move(open.front());
        open.pop_front();
        const std::vector<State> next = after(story, state);
        if (next.empty()) can_end.push_back(number);
        for (const State& one : next) reach(one, number);
    }
    std::vector<bool> ends(known.size());
    std::size_t count = 0;
    while (!can_end.empty()) {
        const std::size_t number = can_end.back();
        can_end.pop_back();
        if (ends[number]) continue;
        ends[number] = true;
        ++count;
        can_end.insert(can_end.end(), before[number].begin(), before[number].end());
    }
    if (count < known.size()) refuse(story, "a rank can wait for ever");
    return count;
}

constexpr Story stories[] = {
    {"all end in order", {2, 2, 2}, false, false, true},
    {"a rank leaves early", {3, 3, 1}},
    {"a rank leaves without a call", {4, 4, 0}},
    {"a rank is killed", {2, 2, 2}, true},
    {"a rank is closed by another thread", {2, 2, 1}, false, true},
};

}  // namespace

std::string stress_sums(const Words&) {
    std::size_t states = 0;
    for (const Story& story : stories) states += explore(story);
    return std::to_string(states) + " states";
}

}  // namespace hpcai500::drivers
