#include "block.h"

#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace hpcai500::cuda_on_cpu {

const Place* here = nullptr;

namespace {

Thread* current = nullptr;
Strands strands;

void run_thread(void* thread) {
    const Grid& grid = *static_cast<Thread*>(thread)->grid;
    grid.body(grid.argument);
}

std::string text(Line line) {
    const std::string_view path = line.file;
    const std::size_t slash = path.rfind('/');
    return std::string(path.substr(slash == std::string_view::npos ? 0 : slash + 1)) + ":" +
           std::to_string(line.line);
}

bool same(Line a, Line b) {
    return a.line == b.line && std::string_view(a.file) == b.file;
}

// What a lane of the warp that begins at `warp` has of a call that all have come to.
std::uint64_t result_of(const WarpCall& call, const Thread* warp) {
    if (call.operation == WarpOperation::shuffle) return warp[call.source].call.bits;
    std::uint64_t ballot = 0;
    for (int lane = 0; lane < warp_lanes; ++lane)
        if ((call.mask >> lane & 1) != 0 && warp[lane].call.bits != 0) ballot |= std::uint64_t{1} << lane;
    return ballot;
}

}  // namespace

Thread& running() {
    return *current;
}

Block::Block(const Grid& grid, uint3 index, void* done)
    : grid_(grid), index_(index), done_(done), threads_(grid.threads) {
    for (unsigned i = 0; i < grid.threads; ++i) {
        Thread& thread = threads_[i];
        thread.place = {{i, 0, 0}, index, dim3(grid.threads), grid.blocks};
        thread.grid = &grid;
        thread.waits = Waits::no;
        thread.fiber.create(strands.take(), run_thread, &thread);
    }
    const auto beginning = std::make_unique<char>();
    release_scheduler(beginning.get());
    for (Thread& thread : threads_) thread.fiber.acquire(beginning.get());
}

// A strand whose thread waits for ever is not used again.
Block::~Block() {
    for (Thread& thread : threads_) {
        thread.fiber.release(done_);
        if (thread.fiber.ended()) strands.give_back(thread.fiber.strand());
    }
}

bool Block::take_turns(const std::vector<std::size_t>& turns) {
    bool any = false;
    for (const std::size_t turn : turns) {
        Thread& thread = threads_[turn];
        if (thread.fiber.ended() || thread.waits != Waits::no) continue;
        any = true;
        current = &thread;
        here = &thread.place;
        thread.fiber.resume();
        if (!thread.fiber.ended() && thread.waits == Waits::for_warp) finish_warp(turn);
    }
    finish_barrier();
    return any;
}

bool Block::ended() const {
    for (const Thread& thread : threads_)
        if (!thread.fiber.ended()) return false;
    return true;
}

// Lets the lanes of the thread's call go on, once all of them that have not ended have come.
void Block::finish_warp(std::size_t thread) {
    const WarpCall call = threads_[thread].call;
    const std::size_t first = thread - thread % warp_lanes;
    if ((call.mask >> (thread % warp_lanes) & 1) == 0) fail(name_of(thread) + " is not in its own mask");
    std::vector<std::size_t> lanes;
    for (std::size_t i = first; i < first + warp_lanes && i < threads_.size(); ++i) {
        const Thread& other = threads_[i];
        if ((call.mask >> (i - first) & 1) == 0 || other.fiber.ended()) continue;
        if (other.waits != Waits::for_warp || other.call.mask != call.mask ||
            other.call.operation != call.operation || !same(other.line, threads_[thread].line))
            return;
        lanes.push_back(i);
    }
    for (const std::size_t i : lanes) {
        Thread& lane = threads_[i];
        const auto source = static_cast<std::size_t>(lane.call.source) + first;
        if (call.operation == WarpOperation::shuffle) {
            const bool absent = source >= threads_.size() || threads_[source].fiber.ended() ||
                                (call.mask >> lane.call.source & 1) == 0;
            if (absent)
                fail(name_of(i) + " reads lane " + std::to_string(lane.call.source) + ", which is absent");
        }
        lane.result = result_of(lane.call, &threads_[first]);
    }
    const auto meeting = std::make_unique<char>();
    if (call.operation == WarpOperation::sync) {
        for (const std::size_t i : lanes) threads_[i].fiber.release(meeting.get());
        for (const std::size_t i : lanes) threads_[i].fiber.acquire(meeting.get());
    }
    for (const std::size_t i : lanes) threads_[i].waits = Waits::no;
}

// Lets all go on, once all that have not ended have come to the same line.
void Block::finish_barrier() {
    const Thread* first = nullptr;
    for (const Thread& thread : threads_) {
        if (thread.fiber.ended()) continue;
        if (thread.waits != Waits::for_block) return;
        if (first != nullptr && !same(first->line, thread.line)) report_stuck();
        first = &thread;
    }
    if (first == nullptr) return;
    const auto meeting = std::make_unique<char>();
    for (Thread& thread : threads_)
        if (!thread.fiber.ended()) thread.fiber.release(meeting.get());
    for (Thread& thread : threads_) {
        if (thread.fiber.ended()) continue;
        thread.fiber.acquire(meeting.get());
        thread.waits = Waits::no;
    }
}

void Block::report_stuck() const {
    std::map<std::string, std::pair<std::size_t, int>> groups;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
        const Thread& thread = threads_[i];
        std::string place = "ended";
        if (!thread.fiber.ended())
            place = (thread.waits == Waits::for_block ? "at the barrier of " : "with their warp at ") +
                    text(thread.line);
        ++groups.try_emplace(place, i, 0).first->second.second;
    }
    std::ostringstream reason;
    reason << "divergent threads:";
    for (const auto& [place, group] : groups)
        reason << ' ' << group.second << " (the first is thread " << group.first << ") " << place << ';';
    fail(reason.str() + " the others never come");
}

std::string Block::name_of(std::size_t thread) const {
    return "thread " + std::to_string(thread) + " at " + text(threads_[thread].line);
}

void Block::fail(const std::string& reason) const {
    std::ostringstream message;
    message << grid_.what << ": block (" << index_.x << ", " << index_.y << ", " << index_.z
            << "): " << reason;
    throw std::logic_error(message.str());
}

}  // namespace hpcai500::cuda_on_cpu
